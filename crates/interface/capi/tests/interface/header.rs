//! The header and the library say the same.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use takt_client::ErrorCode;

use super::support;

fn header() -> String {
    std::fs::read_to_string(takt_testing::repository().join("include/takt.h")).expect("the header")
}

/// `WouldBlock` as the header writes it.
fn constant(code: ErrorCode) -> String {
    let mut name = "TAKT_E".to_owned();
    for letter in format!("{code:?}").chars() {
        if letter.is_uppercase() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[test]
fn every_error_code_has_its_constant_and_the_other_way_round() {
    let header = header();
    let told: BTreeMap<String, i32> = header
        .lines()
        .filter_map(|line| line.strip_prefix("#define TAKT_E_"))
        .map(|rest| {
            let (name, value) = rest.split_once(' ').expect("a value");
            let value = value.trim().trim_matches(['(', ')']);
            (format!("TAKT_E_{name}"), value.parse().expect("a number"))
        })
        .collect();
    let meant = ErrorCode::ALL
        .iter()
        .map(|&code| (constant(code), code as i32))
        .collect();
    assert_eq!(told, meant);
}

#[test]
fn every_function_of_the_header_is_exported_and_nothing_else_is() {
    let nm = Command::new("nm")
        .args(["-D", "--defined-only", "--format=posix"])
        .arg(support::library("libtakt.so"))
        .output()
        .expect("nm; install binutils");
    assert!(nm.status.success());
    let exported: BTreeSet<String> = String::from_utf8_lossy(&nm.stdout)
        .lines()
        .filter_map(|line| line.split(' ').next())
        // The version's own symbol.
        .filter(|name| *name != "libtakt.so.0")
        .map(|name| {
            let (name, version) = name.split_once("@@").expect("a symbol with a version");
            assert_eq!(version, "libtakt.so.0", "{name}");
            name.to_owned()
        })
        .collect();
    let header = header();
    // A declaration begins its line with a type and has its name before the first parenthesis.
    let declared: BTreeSet<String> = header
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter(|line| !line.starts_with("typedef"))
        .filter_map(|line| line.split_once('('))
        .filter_map(|(before, _)| before.rsplit([' ', '*']).next().map(str::to_owned))
        .collect();
    assert!(declared.len() > 30, "{declared:?}");
    assert_eq!(exported, declared);
}

#[test]
fn the_library_names_its_version_for_the_loader_and_needs_no_more_than_the_system_has() {
    let readelf = Command::new("readelf")
        .arg("-d")
        .arg(support::library("libtakt.so"))
        .output()
        .expect("readelf; install binutils");
    let text = String::from_utf8_lossy(&readelf.stdout).into_owned();
    assert!(text.contains("soname: [libtakt.so.0]"), "{text}");
    let needed: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    for name in needed {
        assert!(
            ["libc.so", "libgcc_s.so", "libm.so", "ld-linux"]
                .iter()
                .any(|known| name.starts_with(known)),
            "{name}"
        );
    }
}

#[test]
fn the_header_tells_the_version_of_the_crate() {
    let header = header();
    let number = |name: &str| {
        let line = header
            .lines()
            .find(|line| line.contains(name))
            .expect("a version");
        line.rsplit(' ').next().expect("a number").to_owned()
    };
    let version = ["MAJOR", "MINOR", "PATCH"].map(|part| number(&format!("TAKT_VERSION_{part}")));
    assert_eq!(version.join("."), env!("CARGO_PKG_VERSION"));
}
