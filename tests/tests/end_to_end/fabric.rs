//! The datapath over libfabric between whole nodes.

use takt::{ChannelId, Qos, Wait};
use takt_lab::LabConfig;
use takt_testing::{Directory, PATIENCE};

use crate::crashes::a_killed_peer;
use crate::support::{Pair, attach, datapath_plugin, exchange, introduce, number_of, put, skip};

fn plugin() -> Option<Directory> {
    datapath_plugin("fabric", "/usr/include/rdma/fabric.h")
}

fn sections(directory: &Directory) -> String {
    format!(
        "plugins = \"{}\"\n[mapping]\nfast_frugal = [\"fabric\"]\n[datapath.fabric]\nprovider = \"tcp\"\n",
        directory.path().display()
    )
}

#[test]
fn messages_pass_libfabric_once_and_reliably() {
    if skip() {
        return;
    }
    let Some(directory) = plugin() else {
        return;
    };
    let pair = Pair::with(&LabConfig::default(), &sections(&directory));
    let [near, far] = pair.nodes.each_ref().map(|node| attach(node, "fabric"));
    for (channel, qos) in [(5, Qos::fast()), (6, Qos::fast().reliable())] {
        let stream = near.stream(qos).expect("a stream");
        assert_eq!(stream.datapath(), "fabric", "{:?}", stream.warning());
        let source = stream.source(ChannelId(channel)).expect("a source");
        let reader = far.stream(qos).expect("a stream");
        let sink = reader.sink(ChannelId(channel)).expect("a sink");
        introduce(&source, &[&sink]);
        exchange(&source, &[&sink], 0, 1000);
    }
    const MESSAGES: u64 = 5000;
    let stream = near.stream(Qos::fast().reliable()).expect("a stream");
    let source = stream.source(ChannelId(7)).expect("a source");
    let reader = far.stream(Qos::fast()).expect("a stream");
    let sink = reader.sink(ChannelId(7)).expect("a sink");
    introduce(&source, &[&sink]);
    let before = sink.counters();
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
            let message = sink.consume(Wait::For(PATIENCE)).expect("a message");
            assert_eq!(number_of(&message), number);
        }
        drop(end);
    });
    let after = sink.counters();
    assert_eq!(
        (after.lost, after.dropped_full),
        (before.lost, before.dropped_full)
    );
}

#[test]
fn a_peer_whose_daemon_was_killed_comes_back_by_itself_over_libfabric() {
    if skip() {
        return;
    }
    let Some(directory) = plugin() else {
        return;
    };
    a_killed_peer(&sections(&directory), Qos::fast());
}
