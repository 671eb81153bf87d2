//! Classes without a schedule, of two tenants, on the wire.
//!
//! One lane carries a datapath, or several do. One takes what is of the highest class first. Of several, which
//! know nothing of each other, the link's own queueing discipline decides: a datagram has its class as priority there.

use takt::{ChannelId, Qos, Session, TrafficClass};
use takt_lab::{Host, LabConfig};
use takt_testing::PATIENCE;

use crate::support::application::settled;
use crate::support::{Node, Pair, attach, introduce, put, skip, take};

const CHANNEL: ChannelId = ChannelId(1);
const MESSAGES: u64 = 64;

/// A tenant for each of two lanes.
const TENANTS: &str = "\
[[lane]]
[[lane]]
[[listener]]
path = \"DIR/bulk.sock\"
identity = \"bulk\"
lanes = [BULK]
[[listener]]
path = \"DIR/control.sock\"
identity = \"control\"
lanes = [CONTROL]
";

fn tenant(node: &Node, name: &str) -> Session {
    Session::builder()
        .socket(node.directory.join(&format!("{name}.sock")))
        .request_timeout(PATIENCE)
        .open()
        .expect("a session")
}

fn tc(host: &Host, arguments: &str) {
    let mut command = host.command("tc").expect("enter the host");
    let done = command.args(arguments.split_whitespace()).status();
    assert!(done.expect("tc").success(), "tc {arguments}");
}

/// Two tenants have messages on their way when the link is too slow for them: how many of the low class arrive before
/// the one of the high class. They come to one sink, which keeps the order of the wire.
fn low_ones_before_the_high_one(sections: &str) -> u64 {
    let pair = Pair::with(&LabConfig::default(), sections);
    let host = pair.lab.host(0);
    let reader = attach(&pair.nodes[1], "reader");
    let reader = reader.stream(Qos::slow()).expect("a stream");
    let sink = reader.sink(CHANNEL).expect("a sink");
    let open = |name: &str, qos| {
        let session = tenant(&pair.nodes[0], name);
        let source = session
            .stream(qos)
            .and_then(|stream| stream.source(CHANNEL));
        let source = source.expect("a source");
        introduce(&source, &[&sink]);
        settled(&source);
        (session, source)
    };
    let (_bulk, low) = open("bulk", Qos::slow());
    let class = TrafficClass::new(6).expect("a class");
    let (_control, high) = open("control", Qos::slow().time_sensitive(class));

    // Two seconds' worth of messages waits in the kernel.
    tc(
        host,
        "qdisc replace dev eth0 root handle 1: tbf rate 250kbit burst 2000 limit 1000000",
    );
    tc(
        host,
        "qdisc replace dev eth0 parent 1:1 handle 10: pfifo_fast",
    );
    for number in 0..MESSAGES {
        put(&low, number, 1000);
    }
    settled(&low);
    put(&high, MESSAGES, 64);
    let mut arrived = (0..=MESSAGES).map(|_| take(&sink));
    let before = arrived
        .by_ref()
        .take_while(|number| *number != MESSAGES)
        .count();
    // The others are in their order, none lost.
    assert!(arrived.eq(before as u64..MESSAGES));
    before as u64
}

#[test]
fn a_higher_class_of_a_tenant_on_another_lane_passes_what_waits_for_the_link() {
    if skip() {
        return;
    }
    let sections = TENANTS.replace("[BULK]", "[0]").replace("[CONTROL]", "[1]");
    let before = low_ones_before_the_high_one(&sections);
    assert!(before < MESSAGES, "behind all of them");
}
