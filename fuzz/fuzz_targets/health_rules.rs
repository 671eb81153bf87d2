//! Files of specifications and rules, and names of flows: what is read can be checked and explained, and conditions and flows are read
//! again as they are written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_health::key::FlowKey;
use takt_health::rule::{self, Expression};
use takt_health::spec::Document;

fuzz_target!(|text: &str| {
    if let Ok(expression) = text.parse::<Expression>() {
        let written = expression.to_string();
        // Values are written with few digits; what is read again is written the same.
        if let Ok(again) = written.parse::<Expression>() {
            assert_eq!(again.to_string(), written);
        }
        let _ = expression.evaluate(&|_| Some(1.0));
    }
    if let Ok(flow) = text.parse::<FlowKey>() {
        assert_eq!(flow.to_string().parse(), Ok(flow));
    }
    if let Ok(document) = Document::read(text) {
        let _ = rule::check(&document);
        for rule in &document.rules {
            let _ = rule.explain();
        }
        for spec in &document.specs {
            let _ = spec.to_toml();
        }
    }
});
