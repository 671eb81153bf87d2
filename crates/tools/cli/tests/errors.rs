//! What is wrong with a command line or a file is told with the value, the reason and the remedy: every text as people
//! see it, in `golden/errors.txt`. `TAKT_WRITE_GOLDEN=1 cargo test -p takt-cli --test errors` writes it anew.

mod support;

use std::fmt::Write;
use std::path::Path;

use support::takt;

/// No such thing is there, for any user.
const WRONG: &[&str] = &[
    "balance run -i lo --service http:10.0.0.1:80",
    "balance run -i lo --service udp:10.0.0.1:5004 --neighbour h2",
    "balance run -i lo --service udp:10.0.0.1:5004 --bundles 1000",
    "balance assign -i lo 1 node:1",
    "",
    "stauts",
    "status lanes",
    "status --json=yes",
    "status --admin /takt-none/admin.sock",
    "status --admin schedule.toml",
    "top --interval 1h --admin /takt-none/admin.sock",
    "top --interval 5 --admin /takt-none/admin.sock",
    "reload --admin /takt-none/admin.sock",
    "pub",
    "pub '' hello",
    "pub 99999999999999999999 hello",
    "pub weather --count x",
    "pub weather --count -1",
    "pub weather --count 99999999999999999999",
    "pub weather --interval 10",
    "pub weather --interval 1parsec",
    "pub weather --size big",
    "pub weather hello --size 5",
    "pub weather hello there",
    "pub weather hello --socket /takt-none/takt.sock",
    "pub weather hello --embedded --socket /takt-none/takt.sock",
    "pub weather hello --port 7400",
    "pub weather hello --embedded --port 70000",
    "pub weather hello --embedded --peer 10.0.0.2",
    "pub weather hello --embedded --address eth0",
    "pub weather hello --embedded --address 203.0.113.1",
    "pub weather hello --class 8",
    "pub weather hello --qos quick",
    "sub",
    "sub weather --timeout soon",
    "sub weather --count many",
    "sub weather --quiet --json",
    "topic",
    "topic pub",
    "topic echo weather --socket /takt-none/takt.sock",
    "topic hz weather --window 1",
    "topic pub weather hello --encoding xml",
    "peer",
    "peer add",
    "peer add 10.0.0.2 --admin /takt-none/admin.sock",
    "listener set /run/takt/x.sock",
    "listener set /run/takt/x.sock --identity x --write 9-1",
    "listener set /run/takt/x.sock --identity x --mode 0999",
    "listener set /run/takt/x.sock --identity x --memory lots",
    "session end seven",
    "simulate",
    "simulate balance --nodes 0",
    "simulate balance --bundles 1000",
    "simulate balance --delta 100",
    "simulate balance --strategies best",
    "simulate balance --capacity 5",
    "simulate balance --rate 20Gbit",
    "simulate balance --duration 60min --rate 9Gbit",
    "simulate balance --pcap none.pcap",
    "check --config none.toml",
    "check --config syntax.toml",
    "check --config unknown-key.toml",
    "check --config port.toml",
    "check --config address.toml",
    "check --config channels.toml",
    "check --config twice.toml",
    "check --config spin-fifo.toml",
    "check --config peer.toml",
    "check --config size.toml",
    "check --config mode.toml",
    "check --config stream.toml",
    "check --config stream-closed.toml",
    "check --config chrony.toml",
    "check --config rendezvous.toml",
    "check --config two-lanes.toml",
    "key show --config none.toml",
    "key show none.key",
    "key generate schedule.toml",
    "key generate --group /takt-none/a/../b/group.key --config x",
    "reserve status --kubectl /takt-none/kubectl",
    "run --config none.toml",
    "preload",
    "preload -- ./none",
    "preload -- ./not-executable",
    "schedule check none.toml",
    "schedule check schedule.toml",
    "schedule check schedule.toml --rate fast",
    "schedule install schedule.toml",
    "lab up --hosts 1",
    "lab up --mtu 60",
    "lab up --network 10.0.0.1/24",
    "lab exec h1",
    "lab exec --lab takt-none h1 -- true",
    "lab down takt-none",
    "lab down ../etc",
    "bench lag",
    "stream bench --seconds 1e20",
    "topic pub a --wait 500000000000years",
    "topic pub a --interval 500000000000years",
    "topic pub a --reliable --slow-readers wait --patience 500000000000years",
    "topic pub a --size 18446744073709551615",
    "topic pub a --size 100000000000000",
    "topic list --wait 500000000000years",
    "stream serve a --wait 500000000000years",
    "clock --require 5",
    "clock --ptp4l /var/run/ptp4l",
    "clock --local --chrony localhost",
    "completions csh",
    "man-pages /takt-none",
    "reserve plan none.yaml",
];

fn words(line: &str) -> Vec<&str> {
    let words = line.split(' ').filter(|word| !word.is_empty());
    words
        .map(|word| if word == "''" { "" } else { word })
        .collect()
}

#[test]
fn everything_that_is_wrong_is_told_with_what_would_be_right() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let file = golden.join("errors.txt");
    let mut text = String::new();
    for line in WRONG {
        let output = takt(&words(line))
            .current_dir(golden.join("files"))
            // The first sentence of a help must not depend on the terminal.
            .env("COLUMNS", "100")
            .env("LC_ALL", "C")
            // Any file: none of these programs is started.
            .env("TAKT_PRELOAD_LIBRARY", &file)
            .output()
            .expect("takt");
        let code = output.status.code().expect("an end");
        assert_ne!(code, 0, "accepted: takt {line}");
        assert_eq!(output.stdout, b"", "takt {line}");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(!said.contains("panicked"), "takt {line}: {said}");
        assert!(
            !said.contains("\x1b"),
            "colours where nobody sees them: takt {line}"
        );
        writeln!(text, "$ takt {line}\n{}\n[{code}]\n", said.trim_end()).expect("a string");
    }
    if std::env::var_os("TAKT_WRITE_GOLDEN").is_some() {
        std::fs::write(&file, &text).expect("written");
    }
    let written = std::fs::read_to_string(&file).expect("the golden texts");
    for (now, before) in text.split("\n\n").zip(written.split("\n\n")) {
        assert_eq!(now, before, "TAKT_WRITE_GOLDEN=1 writes the texts anew");
    }
    assert_eq!(text.len(), written.len());
}

#[test]
fn the_key_of_a_node_is_the_one_that_its_configuration_names() {
    let directory = takt_testing::Directory::new();
    let (config, key) = (directory.join("takt.toml"), directory.join("keys/own.key"));
    let text = format!("[security]\nkey_file = \"{}\"\n", key.display());
    std::fs::write(&config, text).expect("written");
    let config = config.to_str().expect("a name");
    let run = |words: &[&str]| takt(words).output().expect("takt");
    let made = run(&["key", "generate", "--config", config]);
    let shown = run(&["key", "show", "--config", config]);
    assert!(
        made.status.success() && shown.status.success(),
        "{made:?} {shown:?}"
    );
    assert_eq!(made.stdout, shown.stdout);
    let named = run(&["key", "show", key.to_str().expect("a name")]);
    assert_eq!(named.stdout, shown.stdout);
}
