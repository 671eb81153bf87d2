//! A configuration file: whatever is in it, a fault is told with its place, and what is accepted can be run with.
//!
//! Input: text.

#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use taktd::config::Settings;

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    match Settings::parse(Path::new("fuzzed.toml"), text) {
        Ok(settings) => {
            assert!(!settings.runtime.lanes.is_empty());
            for listener in &settings.runtime.listeners {
                assert!(!listener.path.as_os_str().is_empty());
                assert!(listener.policy.classes != 0, "a tenant without any class");
            }
            // Read again, it is the same.
            let again = Settings::parse(Path::new("fuzzed.toml"), text).expect("as before");
            assert_eq!(format!("{:?}", again.file), format!("{:?}", settings.file));
        }
        Err(fault) => {
            let told = fault.to_string();
            assert!(told.contains("fuzzed.toml"), "{told}");
        }
    }
});
