//! A schedule in each of its forms, from an operator's file: what can be read can be written, in every form that
//! can say it, and is read back the same; looking at it never fails.
//!
//! Input: text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use takt_schedule::form::{Document, Form, FormError, read, write};
use takt_schedule::render::{self, TerminalStyle};
use takt_schedule::{Link, PortModel, check, diff, summary};
use takt_time::TaiTime;

/// What of a document is in every form that can write it.
fn common(document: &Document, form: Form) -> Document {
    let mut common = document.clone();
    if form != Form::Toml {
        common.schedule.require_sync_ns = None;
    }
    common
}

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    for form in Form::ALL {
        let Ok(parsed) = read(form, text, None) else {
            continue;
        };
        let document = parsed.document;
        look(&document);
        for other in Form::ALL {
            let written = match write(other, &document) {
                Ok(written) => written,
                Err(FormError::NotExpressible { .. }) => {
                    assert_ne!(other, Form::Toml, "it keeps everything");
                    continue;
                }
                Err(error) => panic!("{form} to {other}: {error}"),
            };
            let again = read(other, &written.text, None)
                .unwrap_or_else(|error| panic!("{form} to {other}: {error}\n{}", written.text))
                .document;
            if other == form {
                assert_eq!(again.schedule, document.schedule, "{}", written.text);
            }
            if other == Form::Toml {
                assert_eq!(again, document, "{}", written.text);
                assert!(written.lost.is_empty());
            }
            // Whatever it loses, it tells.
            if written.lost.is_empty() {
                assert_eq!(
                    again.schedule,
                    common(&document, other).schedule,
                    "{}",
                    written.text
                );
            }
        }
    }
});

fn look(document: &Document) {
    let schedule = &document.schedule;
    let ports = [
        PortModel::default(),
        PortModel {
            link: Link::ethernet(0),
            classes: 2,
            largest_frame: 64,
        },
    ];
    document.check();
    for port in ports {
        for now in [None, Some(TaiTime::from_nanos(0))] {
            check(schedule, &port, now);
        }
        summary(schedule, &port);
        render::svg(schedule, &port, "fuzzed");
        render::terminal(schedule, &port, TerminalStyle::default());
    }
    let difference = diff::documents(document, document);
    assert!(difference.changes.is_empty() && difference.same_gates);
    diff(schedule, &takt_schedule::Schedule::default());
}
