//! The table of calls in the reference names what the library stands in front of, and nothing else.

use std::collections::BTreeSet;
use std::process::Command;

use takt_testing::repository;

use super::support::built;

/// Functions that the library defines for programs.
fn exported() -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(built("libtakt_preload.so"))
        .output()
        .expect("nm: install binutils");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("names");
    let symbols = text.lines().filter_map(|line| {
        let (name, rest) = line.split_once(' ')?;
        (rest.starts_with("T ") || rest.starts_with("W ")).then(|| name.to_owned())
    });
    symbols.collect()
}

/// The names of the table's rows, with what happens to them.
fn told() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(repository().join("docs/reference/preload.md"));
    let text = text.expect("the reference");
    let (_, section) = text.split_once("\n## Calls\n").expect("a section");
    let section = section.split("\n## ").next().expect("a part");
    let rows = section.lines().filter(|line| line.starts_with("| "));
    // Behind its head and the line below that.
    rows.skip(1)
        .flat_map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let (names, fate) = (cells.next().expect("names"), cells.next().expect("a fate"));
            let names = names.split(", ").filter_map(|name| {
                let name = name.strip_prefix('`')?.strip_suffix('`')?;
                Some((name.to_owned(), fate.to_owned()))
            });
            names.collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn the_reference_tells_of_each_call_what_happens_to_it() {
    let exported = exported();
    let told = told();
    for (name, fate) in &told {
        let known = [
            "accelerated",
            "followed",
            "partial",
            "passed through",
            "unsupported",
        ];
        assert!(known.contains(&fate.as_str()), "{name}: {fate}");
        let interposed = ["accelerated", "followed", "partial"].contains(&fate.as_str());
        assert_eq!(exported.contains(name), interposed, "{name} is {fate}");
    }
    let told: BTreeSet<String> = told.into_iter().map(|(name, _)| name).collect();
    let untold: Vec<_> = exported.difference(&told).collect();
    assert!(
        untold.is_empty(),
        "interposed and not in the table: {untold:?}"
    );
}
