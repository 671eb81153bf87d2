use proptest::prelude::*;

use super::*;

fn entry(id: u64, topic: &str, role: Role) -> Entry {
    Entry {
        id,
        topic: topic.into(),
        role,
        encoding: 0,
        history: 0,
        inbox: 0,
        of: 0,
    }
}

fn update(participant: u64, from: u64, to: u64, add: Vec<Entry>, remove: Vec<u64>) -> Said {
    Said::Update {
        participant,
        name: format!("program {participant}"),
        from,
        to,
        add,
        remove,
    }
}

#[test]
fn topics_are_those_that_participants_tell_of() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    let publisher = entry(1, "plant/7", Role::Publisher);
    let add = vec![publisher, entry(2, "plant/8", Role::Subscriber)];
    assert_eq!(
        directory.hear(now, update(1, 0, 1, add, vec![])),
        Heard::Changed(vec![])
    );
    let add = vec![entry(1, "plant/*", Role::Subscriber)];
    directory.hear(now, update(2, 0, 5, add, vec![]));
    let listed = topics(&directory.snapshot());
    let seen: Vec<_> = listed
        .iter()
        .map(|t| (&*t.name, t.publishers.len(), t.subscribers.len()))
        .collect();
    assert_eq!(seen, [("plant/7", 1, 1), ("plant/8", 0, 2)]);
    assert_eq!(listed[0].publishers, ["program 1"]);
    assert_eq!(Vec::from_iter(directory.written()), ["plant/7"]);

    directory.hear(now, update(1, 1, 2, vec![], vec![1]));
    assert!(directory.written().next().is_none());
    assert_eq!(
        directory.hear(now, Said::Leave { participant: 1 }),
        Heard::Changed(vec![])
    );
    assert_eq!(
        directory.hear(now, Said::Leave { participant: 1 }),
        Heard::Nothing
    );
}

#[test]
fn who_missed_something_asks_and_is_told_everything() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    let alive = |version| Said::Alive {
        participant: 1,
        version,
    };
    assert_eq!(directory.hear(now, alive(1)), Heard::Unknown(1));
    assert_eq!(
        directory.hear(now, update(1, 3, 4, vec![], vec![])),
        Heard::Unknown(1)
    );
    directory.hear(
        now,
        update(1, 0, 4, vec![entry(1, "a", Role::Publisher)], vec![]),
    );
    assert_eq!(directory.hear(now, alive(4)), Heard::Nothing);
    assert_eq!(directory.hear(now, alive(5)), Heard::Unknown(1));
    assert_eq!(
        directory.hear(now, Said::Ask { participant: None }),
        Heard::Asked(None)
    );
    // The whole list takes the place of what was known.
    directory.hear(
        now,
        update(1, 0, 6, vec![entry(2, "b", Role::Publisher)], vec![]),
    );
    assert_eq!(Vec::from_iter(directory.written()), ["b"]);
}

#[test]
fn who_says_nothing_any_more_is_gone() {
    let (mut directory, start) = (Directory::default(), Instant::now());
    directory.hear(
        start,
        update(1, 0, 1, vec![entry(1, "a", Role::Publisher)], vec![]),
    );
    directory.hear(
        start,
        update(2, 0, 1, vec![entry(1, "b", Role::Publisher)], vec![]),
    );
    let later = start + LEASE / 2;
    directory.hear(
        later,
        Said::Alive {
            participant: 2,
            version: 1,
        },
    );
    assert!(!directory.expire(later));
    assert!(directory.expire(start + LEASE));
    assert_eq!(Vec::from_iter(directory.written()), ["b"]);
}

#[test]
fn a_subscriber_joins_once() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    let mut late = entry(1, "a", Role::Subscriber);
    late.history = 3;
    let joined = Heard::Changed(vec![late.clone()]);
    assert_eq!(
        directory.hear(now, update(1, 0, 1, vec![late.clone()], vec![])),
        joined
    );
    assert_eq!(
        directory.hear(now, update(1, 0, 1, vec![late], vec![])),
        Heard::Changed(vec![])
    );
}

#[test]
fn what_is_remembered_is_bounded() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    for participant in 1..=MOST_PARTICIPANTS as u64 {
        directory.hear(now, update(participant, 0, 1, vec![], vec![]));
    }
    assert_eq!(
        directory.hear(now, update(0, 0, 1, vec![], vec![])),
        Heard::Full(vec![])
    );
    let all = |from: u64| {
        (from..from + 200_000)
            .map(|id| entry(id, "a", Role::Publisher))
            .collect()
    };
    assert_eq!(
        directory.hear(now, update(1, 0, 2, all(0), vec![])),
        Heard::Changed(vec![])
    );
    assert_eq!(
        directory.hear(now, update(2, 0, 2, all(0), vec![])),
        Heard::Full(vec![])
    );
    assert_eq!(directory.entries, MOST_ENTRIES);
    directory.hear(now, Said::Leave { participant: 1 });
    assert_eq!(
        directory.hear(now, update(2, 0, 3, all(0), vec![])),
        Heard::Changed(vec![])
    );
}

#[test]
fn what_a_list_had_before_is_bounded_with_it() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    let all = |from: u64| {
        (from..from + MOST_ENTRIES as u64)
            .map(|id| entry(id, "a", Role::Publisher))
            .collect::<Vec<_>>()
    };
    let changed = Heard::Changed(vec![]);
    // A whole list that is told again has room.
    for _ in 0..2 {
        assert_eq!(
            directory.hear(now, update(1, 0, 1, all(0), vec![])),
            changed
        );
        assert!(directory.others[&1].former.is_empty());
    }
    // It has nothing any more, and might come again with all of it.
    assert_eq!(
        directory.hear(now, update(1, 0, 2, vec![], vec![])),
        changed
    );
    let other = all(1 << 32);
    assert_eq!(
        directory.hear(now, update(2, 0, 1, other.clone(), vec![])),
        Heard::Full(vec![])
    );
    assert_eq!(directory.entries, MOST_ENTRIES);
    assert_eq!(
        directory.hear(now, update(1, 0, 3, vec![], vec![])),
        changed
    );
    assert_eq!(directory.entries, 0);
    assert_eq!(directory.hear(now, update(2, 0, 2, other, vec![])), changed);
    directory.expire(now + LEASE);
    assert_eq!(directory.entries, 0);
}

#[test]
fn what_cannot_be_is_not_remembered() {
    let (mut directory, now) = (Directory::default(), Instant::now());
    let add = ["", "a//b", "a/*"].map(|topic| entry(topic.len() as u64, topic, Role::Publisher));
    directory.hear(now, update(1, 0, 1, add.into(), vec![]));
    assert!(topics(&directory.snapshot()).is_empty());
}

proptest! {
    #[test]
    fn what_is_said_is_read_again(participant: u64, from: u64, to: u64, id: u64, topic: String, history: u32) {
        let mut one = entry(id, &topic, Role::Subscriber);
        one.history = history;
        let said = update(participant, from, to, vec![one], vec![id]);
        let text = serde_json::to_vec(&said).expect("text");
        prop_assert_eq!(serde_json::from_slice::<Said>(&text).expect("said"), said);
    }

    #[test]
    fn anything_may_be_said(messages: Vec<u8>) {
        fuzz(&messages);
    }
}
