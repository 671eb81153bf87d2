//! What a peer says of a reliable source, to either end, beside an honest one: bounds hold, and the honest peer's messages
//! are kept until it has them.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_recovery::codec::{ACKNOWLEDGEMENT_LEN, ANNOUNCE_LEN};
use takt_recovery::{
    Acknowledgement, Action, Announce, Arrival, Config, MAX_WINDOW, Receiver, Sender,
};

const WINDOW: u32 = 64;

fuzz_target!(|bytes: &[u8]| {
    let config = Config {
        messages: WINDOW,
        ..Config::default()
    };
    let mut sender = Sender::new(config).expect("a configuration");
    let hostile = sender.add_peer(0).expect("room");
    let honest = sender.add_peer(0).expect("room");
    let mut receiver = Receiver::new(WINDOW).expect("a window");
    let (mut now, mut rest) = (0i64, bytes);
    while let Some((&what, more)) = rest.split_first() {
        now += i64::from(what) * 10_000;
        let length = match what % 4 {
            0 => ACKNOWLEDGEMENT_LEN,
            1 => ANNOUNCE_LEN,
            _ => 4,
        };
        let Some((said, more)) = more.split_at_checked(length) else {
            break;
        };
        rest = more;
        match what % 4 {
            0 => {
                let said = Acknowledgement::decode(said).expect("as long");
                let before = sender.acknowledged(honest);
                let _ = sender.acknowledge(now, hostile, &said);
                assert_eq!(sender.acknowledged(honest), before);
            }
            1 => {
                let said = Announce::decode(said).expect("as long");
                let _ = receiver.announce(now, &said);
            }
            2 => {
                let number = u32::from_le_bytes([said[0], said[1], said[2], said[3]]);
                let judged = receiver.judge(number);
                assert_eq!(receiver.receive(now, number, now), judged);
                if judged == Arrival::Keep {
                    assert_ne!(receiver.judge(number), Arrival::Keep);
                }
            }
            _ => {
                let _ = sender.emit(now, u64::from(said[0]) + 1);
            }
        }
        // Nobody but itself acknowledges for the honest peer, unless it is given up for its silence.
        if let Some(next) = sender.acknowledged(honest) {
            assert!(sender.next().wrapping_sub(next) <= sender.retained());
        }
        assert!(sender.retained() <= WINDOW);
        let mut actions = 0;
        while let Some(action) = sender.poll(now) {
            actions += 1;
            assert!(actions < 1024, "no end");
            if let Action::Repair(peer, _) = action {
                assert_ne!(peer, honest, "it asked for nothing");
            }
        }
        let mut delivered = 0;
        while receiver.deliver(now).is_some() {
            delivered += 1;
            assert!(delivered <= 2 * MAX_WINDOW, "no end");
        }
        if let Some(said) = receiver.poll(now) {
            assert!(said.limit.wrapping_sub(said.next) <= MAX_WINDOW);
        }
    }
});
