//! Datapaths that are loaded: the one in C of the examples, over links that it makes bad.

use std::process::Command;

use takt::{Qos, SinkCounters, Wait};
use takt_lab::LabConfig;
use takt_testing::{Directory, PATIENCE, repository, until_true};

use crate::support::{Pair, attach, introduce, number_of, put, skip};

const WAIT: Wait = Wait::For(PATIENCE);
const CHANNEL: takt::ChannelId = takt::ChannelId(5);

/// A directory with the plugin.
pub fn plugin() -> Directory {
    let directory = Directory::new();
    let built = Command::new("cc")
        .args(["-O2", "-shared", "-fPIC", "-I"])
        .arg(repository().join("include"))
        .arg(repository().join("examples/datapath-lossy/lossy.c"))
        .arg("-o")
        .arg(directory.join("libtakt_datapath_lossy.so"))
        .status();
    assert!(built.expect("cc starts").success());
    directory
}

pub fn sections(directory: &Directory, options: &str) -> String {
    format!(
        "plugins = \"{}\"\n[mapping]\nfast_frugal = [\"lossy\"]\n[datapath.lossy]\n{options}\n",
        directory.path().display()
    )
}

#[test]
fn messages_pass_a_loaded_datapath_and_what_it_loses_is_repaired_or_counted() {
    if skip() {
        return;
    }
    let directory = plugin();
    let bad = "loss = 3\nduplicate = 2\nreorder = 3\ndelay_us = 50\njitter_us = 50\nseed = 7";
    let pair = Pair::with(&LabConfig::default(), &sections(&directory, bad));
    let [near, far] = pair.nodes.each_ref().map(|node| attach(node, "plugins"));
    const MESSAGES: u64 = 3000;

    let stream = near.stream(Qos::fast().reliable()).expect("a stream");
    assert_eq!(stream.datapath(), "lossy");
    let source = stream.source(CHANNEL).expect("a source");
    let reader = far.stream(Qos::fast()).expect("a stream");
    let sink = reader.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    let (end, ended) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for number in 0..MESSAGES {
                put(&source, number, 1000);
            }
            // Its messages are under way as long as it is there.
            let _ = ended.recv();
        });
        for number in 0..MESSAGES {
            let message = sink.consume(WAIT).expect("a message");
            assert_eq!(number_of(&message), number);
        }
        drop(end);
    });
    assert_eq!((sink.counters().lost, sink.counters().dropped_full), (0, 0));
    drop(sink);

    let stream = near.stream(Qos::fast()).expect("a stream");
    let source = stream.source(CHANNEL).expect("a source");
    let sink = reader.sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    let before = sink.counters();
    for number in 0..MESSAGES {
        put(&source, number, 1000);
    }
    let mut last = None;
    until_true("all that was not lost arrives", || {
        while let Ok(message) = sink.consume(Wait::Never) {
            let number = number_of(&message);
            assert_ne!(last, Some(number), "twice");
            last = Some(number);
        }
        let now = sink.counters();
        let known = |of: SinkCounters| of.delivered + of.lost + of.dropped_full + of.dropped_memory;
        known(now) - known(before) >= MESSAGES - 200
    });
    let lost = sink.counters().lost - before.lost;
    assert!((1..MESSAGES / 5).contains(&lost), "{lost} lost");
}

#[test]
fn a_datapath_that_cannot_be_loaded_is_told_and_streams_take_another() {
    if skip() {
        return;
    }
    let directory = plugin();
    let pair = Pair::with(&LabConfig::default(), &sections(&directory, "loss = 200"));
    let session = attach(&pair.nodes[0], "plugins");
    let stream = session.stream(Qos::fast()).expect("a stream");
    assert_eq!(stream.datapath(), "udp");
    let warning = stream.warning().expect("it is not what was asked for");
    assert!(
        warning.contains("`loss` is 200: write a number from 0 to 100"),
        "{warning}"
    );
    assert!(
        pair.nodes[0].log().contains("`loss` is 200"),
        "{}",
        pair.nodes[0].log()
    );
}
