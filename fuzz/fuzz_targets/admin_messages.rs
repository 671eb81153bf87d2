//! Messages of the admin API as they come from a socket: what the runtime is given is within its bounds, what is
//! refused is refused in words.
//!
//! Input: which message, and its encoding (protobuf).

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use prost::Message;
use takt_schedule::PortModel;
use taktd::admin::fuzzing::{listener, mac, schedule, station, vtep};
use taktd::admin::proto;

const ADMIN: &str = "/run/takt/admin.sock";

fn refused(reason: &str) {
    assert!(reason.len() > 8, "{reason:?} helps nobody");
}

fuzz_target!(|input: &[u8]| {
    let Some((which, bytes)) = input.split_first() else {
        return;
    };
    match which % 4 {
        0 => {
            let Ok(message) = proto::Listener::decode(bytes) else {
                return;
            };
            match listener(message, Path::new(ADMIN)) {
                Ok(config) => {
                    assert_ne!(config.path, Path::new(ADMIN));
                    assert!(config.mode <= 0o777);
                    assert!(config.policy.classes != 0);
                }
                Err(reason) => refused(&reason),
            }
        }
        1 => {
            let Ok(message) = proto::InstallScheduleRequest::decode(bytes) else {
                return;
            };
            match schedule(message) {
                Ok(link) => drop(takt_schedule::check(
                    &link.schedule,
                    &PortModel::default(),
                    None,
                )),
                Err(reason) => refused(&reason),
            }
        }
        2 => {
            let Ok(message) = proto::Station::decode(bytes) else {
                return;
            };
            if let Err(reason) = station(&message) {
                refused(&reason);
            }
        }
        _ => {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(Some(address)) = vtep(&text) {
                assert!(!address.is_unspecified() && !address.is_multicast());
            }
            if let Err(reason) = mac("mac", &text) {
                refused(&reason);
            }
        }
    }
});
