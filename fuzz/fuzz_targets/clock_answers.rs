//! What daemons that keep clocks answer: chronyd's report, management messages of ptp4l, and NTP of a host. Reading either fails by
//! an error or yields values that can be put together; a bound is never less than the offset it is made of.
//!
//! Input: which of them (0: chronyd, 1: ptp4l, 2: NTP, and so on), then a datagram.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_clock::chrony;
use takt_clock::ptp4l::management::{
    Answer, CurrentDataSet, DefaultDataSet, Id, PortDataSet, PortProperties, TimeProperties,
    TimeStatus,
};

fuzz_target!(|input: &[u8]| {
    let Some((which, datagram)) = input.split_first() else {
        return;
    };
    if which % 3 == 2 {
        let _ = takt_clock::host::parse(datagram, 7, i64::MIN, i64::MAX);
        let now = 1_790_000_000_000_000_000;
        if let Ok(host) = takt_clock::host::parse(datagram, 7, now, now + 1000) {
            assert!(!host.synchronised || (1..16).contains(&host.stratum));
        }
        return;
    }
    if which % 3 == 0 {
        // The number of the seeds' question.
        if let Ok(tracking) = chrony::parse(datagram, 7) {
            assert!(tracking.bound_ns() >= tracking.offset_ns.unsigned_abs());
        }
        return;
    }
    let Ok(answer) = Answer::parse(datagram) else {
        return;
    };
    let Ok(data) = answer.data else {
        return;
    };
    let length = data.len();
    let enough = match answer.id {
        Id::DefaultDataSet => DefaultDataSet::parse(data).map(|_| 20),
        Id::CurrentDataSet => CurrentDataSet::parse(data).map(|_| 18),
        Id::TimeProperties => TimeProperties::parse(data).map(|_| 4),
        Id::PortDataSet => PortDataSet::parse(data).map(|_| 26),
        Id::TimeStatus => TimeStatus::parse(data).map(|_| 50),
        Id::PortProperties => PortProperties::parse(data).map(|properties| {
            assert!(properties.interface.is_ascii());
            assert!(!properties.interface.chars().any(char::is_control));
            13
        }),
    };
    if let Ok(enough) = enough {
        assert!(length >= enough);
    }
});
