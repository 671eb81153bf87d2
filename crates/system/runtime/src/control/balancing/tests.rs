use super::*;

const SECOND: Duration = Duration::from_secs(1);
const HOLD: Duration = Duration::from_secs(30);

/// A node in virtual time: who is where, and how much each does in a second, per mille of a lane.
struct Node {
    balancing: Balancing,
    lanes: usize,
    now: Duration,
    busy: Vec<u64>,
    /// What each lane has done for nobody, and does in a second, per mille.
    others: Vec<(u64, u32)>,
    sessions: Vec<(Seen, u32)>,
    moves: Vec<Move>,
}

impl Node {
    fn new(lanes: usize) -> Self {
        let config = Balance {
            lanes: true,
            hold: HOLD,
            ..Balance::default()
        };
        let mut node = Self {
            balancing: Balancing::new(config, lanes),
            lanes,
            now: Duration::ZERO,
            busy: vec![0; lanes],
            others: vec![(0, 0); lanes],
            sessions: Vec::new(),
            moves: Vec::new(),
        };
        node.look();
        node
    }

    fn session(&mut self, id: u32, tenant: u32, lane: usize, load: u32) {
        let seen = Seen {
            id: SessionId(id),
            tenant,
            lane,
            work: 0,
            moved: None,
            lanes: (0..self.lanes).collect(),
        };
        self.sessions.push((seen, load));
    }

    fn get(&mut self, id: u32) -> &mut (Seen, u32) {
        let mut sessions = self.sessions.iter_mut();
        let found = sessions.find(|(seen, _)| seen.id == SessionId(id));
        found.expect("a session")
    }

    fn lane_of(&mut self, id: u32) -> usize {
        self.get(id).0.lane
    }

    fn look(&mut self) -> Vec<Move> {
        let seen: Vec<Seen> = self.sessions.iter().map(|(seen, _)| seen.clone()).collect();
        let others: Vec<u64> = self.others.iter().map(|(work, _)| *work).collect();
        let moves = self.balancing.look(self.now, &self.busy, &others, &seen);
        for moved in &moves {
            let now = self.now;
            let (seen, _) = self.get(moved.session.0);
            (seen.lane, seen.moved) = (moved.to, Some(now));
        }
        self.moves.extend(moves.clone());
        moves
    }

    /// A second goes by: each lane does what its sessions ask for, as far as it gets.
    fn second(&mut self) -> Vec<Move> {
        self.now += SECOND;
        for lane in 0..self.lanes {
            let here = self
                .sessions
                .iter_mut()
                .filter(|(seen, _)| seen.lane == lane);
            let (work, load) = &mut self.others[lane];
            *work += u64::from(*load) * 1000;
            let mut asked = u64::from(*load);
            for (seen, load) in here {
                seen.work += u64::from(*load) * 1000;
                asked += u64::from(*load);
            }
            self.busy[lane] += asked.min(1000) * 1_000_000;
        }
        self.look()
    }
}

#[test]
fn of_two_tenants_on_a_lane_the_one_that_another_lane_has_room_for_leaves_it() {
    let mut node = Node::new(2);
    node.session(1, 1, 0, 950);
    node.session(2, 2, 0, 20);
    let moves = node.second();
    assert_eq!(
        (moves.len(), moves[0].session, moves[0].to),
        (1, SessionId(2), 1)
    );
    assert_eq!(node.balancing.load(0).map(|(_, over)| over), Some(true));
    for _ in 0..100 {
        // Alone, the other one would be no better off on another lane.
        assert_eq!(node.second(), []);
    }
    assert_eq!((node.lane_of(1), node.lane_of(2)), (0, 1));
}

#[test]
fn what_a_lane_does_for_strangers_is_no_load_of_its_sessions() {
    let mut node = Node::new(2);
    // Strangers fill the one lane; the other one has room for the little that its session does.
    node.others[0].1 = 900;
    node.session(1, 1, 0, 50);
    node.session(2, 2, 1, 600);
    let moves = node.second();
    assert_eq!(
        moves
            .iter()
            .map(|one| (one.session, one.to))
            .collect::<Vec<_>>(),
        [(SessionId(1), 1)]
    );
    assert_eq!(node.balancing.part(SessionId(1)), 50);
    assert_eq!(node.balancing.part(SessionId(2)), 600);
}

#[test]
fn nothing_moves_below_the_high_mark_and_one_at_a_time_until_the_low_one() {
    let mut node = Node::new(2);
    for id in 0..8 {
        node.session(id, id, 0, 110);
    }
    assert_eq!(node.second(), [], "88 % are no overload");
    node.session(8, 8, 0, 40);
    for load in [920, 810] {
        assert_eq!(node.second().len(), 1, "at {load} per mille");
    }
    for _ in 0..100 {
        assert_eq!(node.second(), []);
    }
}

#[test]
fn a_session_that_may_be_served_nowhere_else_stays_and_so_does_one_that_does_nothing() {
    let mut node = Node::new(3);
    node.session(1, 1, 0, 950);
    node.session(2, 2, 0, 30);
    node.get(2).0.lanes = vec![0];
    node.session(3, 3, 0, 0);
    for _ in 0..100 {
        assert_eq!(node.second(), []);
    }
    node.get(2).0.lanes = vec![0, 2];
    assert_eq!(node.second().first().map(|moved| moved.to), Some(2));
    node.get(2).0.lanes = Vec::new();
    let seen = node.get(2).0.clone();
    let late = node.now + HOLD;
    assert_eq!(node.balancing.evict(late, &seen), Err(Stays::Bound));
}

#[test]
fn whoever_makes_lanes_overloaded_in_turn_moves_others_once_in_a_hold_time() {
    let mut node = Node::new(2);
    // The hostile tenant has a session on each lane, and loads the one that the other tenant is on.
    node.session(1, 1, 0, 0);
    node.session(2, 1, 1, 0);
    for session in [1, 2] {
        let lane = node.lane_of(session);
        node.get(session).0.lanes = vec![lane];
    }
    node.session(3, 2, 0, 20);
    let mut moved = Vec::new();
    for _ in 0..600 {
        let at = node.lane_of(3);
        node.get(1).1 = if at == 0 { 980 } else { 0 };
        node.get(2).1 = if at == 1 { 980 } else { 0 };
        if !node.second().is_empty() {
            moved.push(node.now);
        }
    }
    assert!(moved.len() <= 600 / HOLD.as_secs() as usize, "{moved:?}");
    assert!(moved.len() > 2, "it is not left where it suffers");
    for pair in moved.windows(2) {
        assert!(pair[1] >= pair[0] + HOLD, "{pair:?}");
    }
}

#[test]
fn a_tenant_with_many_sessions_takes_nobody_elses_turn() {
    let mut node = Node::new(2);
    for id in 10..40 {
        node.session(id, 1, 0, 40);
    }
    node.session(1, 2, 0, 5);
    // The largest goes first, then whoever has waited longest.
    assert_eq!(
        node.second().first().map(|moved| moved.session.0 >= 10),
        Some(true)
    );
    assert_eq!(
        node.second().first().map(|moved| moved.session),
        Some(SessionId(1))
    );
    for _ in 0..100 {
        node.second();
        let loads = [0, 1].map(|lane| node.balancing.load(lane).expect("known").0);
        assert!(
            loads[1] < 900,
            "none is moved where it makes another overload: {loads:?}"
        );
    }
}

#[test]
fn two_lanes_that_are_both_overloaded_exchange_nothing() {
    let mut node = Node::new(2);
    for id in 0..10 {
        node.session(id, id, id as usize % 2, 250);
    }
    for _ in 0..100 {
        assert_eq!(node.second(), []);
    }
}

#[test]
fn a_rule_moves_a_session_that_gains_by_it_also_where_none_moves_by_itself() {
    let mut node = Node::new(2);
    let config = Balance::default();
    node.balancing.set(config);
    node.session(1, 1, 0, 400);
    node.session(2, 2, 0, 100);
    assert_eq!(node.second(), []);
    let now = node.now;
    let seen = node.get(2).0.clone();
    let moved = node.balancing.evict(now, &seen).expect("it gains");
    assert_eq!((moved.to, moved.load), (1, 500));
    let held = Seen {
        lane: 1,
        moved: Some(now),
        ..seen
    };
    assert_eq!(node.balancing.evict(now, &held), Err(Stays::Held));
    // Alone on its lane, it is nowhere better off.
    let mut node = Node::new(2);
    node.session(1, 1, 0, 400);
    node.second();
    let (seen, now) = (node.get(1).0.clone(), node.now);
    assert_eq!(node.balancing.evict(now, &seen), Err(Stays::NoBetter));
}

#[test]
fn with_one_lane_there_is_nothing_to_look_at() {
    let mut node = Node::new(1);
    node.session(1, 1, 0, 2000);
    assert_eq!(node.balancing.next(), None);
    assert_eq!(node.second(), []);
    assert_eq!(node.balancing.load(0), None);
}

#[test]
fn a_step_of_the_clock_in_a_round_is_no_more_than_all_of_the_time() {
    let mut node = Node::new(2);
    node.session(1, 1, 0, 10);
    node.busy[0] += u64::MAX / 2;
    node.second();
    assert_eq!(node.balancing.load(0), Some((1000, true)));
    node.second();
    assert_eq!(node.balancing.load(0), Some((10, false)));
}
