//! System calls by their numbers, by the C library's `syscall`.

use std::path::PathBuf;
use std::process::Command;

use super::musl;
use super::support::{Listener, PORT, Running, Site, ended_well, musl_program, program};

const SAID: &str = "as it should be\n";

/// What the program sends with times.
const TIMED: [&str; 7] = [
    "one",
    "many 0",
    "many 1",
    "many 2",
    "connected",
    "cancelled",
    "last",
];

/// The program for each C library, with its library.
fn programs() -> Vec<(PathBuf, Option<PathBuf>)> {
    let mut programs = vec![(program("numbers"), None)];
    if let Some(libraries) = musl::libraries() {
        programs.push((musl_program("numbers"), Some(libraries.to_owned())));
    }
    programs
}

fn command(site: &Site, (program, library): &(PathBuf, Option<PathBuf>)) -> Command {
    let mut command = site.command(program);
    if let Some(library) = library {
        command.env("LD_PRELOAD", library);
    }
    command
}

#[test]
fn sends_by_number_are_the_runtimes_and_what_came_of_them_is_told() {
    let site = Site::new();
    let listener = Listener::new(site.there());
    for program in programs() {
        for mode in ["on", "required"] {
            for address in site.addresses() {
                let before = site.sent();
                let mut command = command(&site, &program);
                command.args(["timed", &address.to_string()]);
                let running = Running::start(command.env("TAKT_PRELOAD", mode));
                let mut texts = TIMED.map(|_| listener.next_in_time().0);
                texts.sort_unstable();
                let mut expected = TIMED.map(|text| text.as_bytes().to_vec());
                expected.sort_unstable();
                assert_eq!(texts, expected, "{mode} {address}");
                assert_eq!(running.end(), (SAID.into(), String::new()));
                let sent = site.sent() - before;
                assert_eq!(sent, TIMED.len() as u64, "{mode} {address}: by the runtime");
            }
        }
    }
    assert!(listener.is_empty());
}

#[test]
fn datagrams_without_a_time_that_are_sent_by_number_leave_on_the_grid_in_their_order() {
    const COUNT: usize = 300;
    let site = Site::new();
    let listener = Listener::new(site.there());
    for program in programs() {
        for address in site.addresses() {
            let before = site.sent();
            let mut command = command(&site, &program);
            command
                .args(["untimed", &address.to_string(), &COUNT.to_string()])
                .env("TAKT_PRELOAD", "required")
                .env("TAKT_PRELOAD_GRID", format!("1ms,port={PORT}"));
            let running = Running::start(&mut command);
            for number in 0..COUNT + 3 {
                let (text, _) = listener.next();
                assert_eq!(text, number.to_string().as_bytes(), "{address}");
            }
            assert_eq!(running.end(), (SAID.into(), String::new()));
            let sent = site.sent() - before;
            assert_eq!(sent, COUNT as u64 + 3, "{address}: by the runtime");
        }
    }
}

#[test]
fn all_other_calls_by_number_are_the_kernels() {
    let site = Site::without_daemon();
    for program in programs() {
        for grid in ["", "1ms,port=9"] {
            let mut command = command(&site, &program);
            command.arg("through").env("TAKT_PRELOAD_GRID", grid);
            assert_eq!(
                ended_well(command.output()),
                (SAID.into(), String::new()),
                "{program:?}"
            );
        }
    }
}
