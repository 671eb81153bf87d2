//! The datapath over DPDK between whole nodes, on devices that the kernel does not know: with addresses of their own.

use takt::{ChannelId, Qos};
use takt_lab::{Lab, LabConfig};
use takt_testing::{Directory, until, until_true};
use taktd::admin::proto;

use crate::support::{Node, Pair, attach, datapath_plugin, exchange, introduce, sent_by, skip};

/// One of two nodes with an end of a memif each. Huge pages are not there on machines of tests.
fn sections(plugins: &Directory, memif: &Directory, own: usize) -> String {
    format!(
        "plugins = \"{}\"\n[datapath.dpdk]\ndevice = \"net_memif0,role={},socket-abstract=no,socket={}\"\n\
         address = \"10.99.0.{}/24\"\nhugepages = \"off\"\n",
        plugins.path().display(),
        ["server", "client"][own],
        memif.path().join("memif.sock").display(),
        own + 1
    )
}

#[test]
fn messages_pass_a_memif_whose_addresses_the_kernel_does_not_have() {
    if skip() {
        return;
    }
    let Some(plugins) = datapath_plugin("dpdk", "/usr/include/dpdk/rte_ethdev.h") else {
        return;
    };
    let memif = Directory::new();
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    let nodes = [0, 1].map(|own| {
        let peers = [lab.host(1 - own).address()];
        Node::start(lab.host(own), &peers, &sections(&plugins, &memif, own))
    });
    let pair = Pair { nodes, lab };
    pair.await_peers(proto::PeerState::Up);
    let sessions = pair.nodes.each_ref().map(|node| attach(node, "dpdk"));
    // Nothing else carries them.
    let only = Qos::fast()
        .unlimited()
        .only_over("dpdk".parse().expect("a name"));
    let mut channel = 4;
    for (from, to) in [(0, 1), (1, 0)] {
        for qos in [only, only.reliable()] {
            channel += 1;
            // Refused for as long as nobody is at the other end of the memif.
            let stream = until("the memif has a link", || sessions[from].stream(qos).ok());
            assert_eq!(stream.datapath(), "dpdk", "{:?}", stream.warning());
            let source = stream.source(ChannelId(channel)).expect("a source");
            let reader = sessions[to].stream(Qos::slow()).expect("a stream");
            let sink = reader.sink(ChannelId(channel)).expect("a sink");
            introduce(&source, &[&sink]);
            exchange(&source, &[&sink], 0, 500);
        }
        until_true("the port has told what it sent", || {
            sent_by(&pair.nodes[from], "dpdk") >= 1000
        });
    }
}
