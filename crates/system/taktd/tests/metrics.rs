//! Metrics as Prometheus fetches them.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use support::{Daemon, LISTENER};
use takt::{ChannelId, Qos};
use takt_testing::until;

/// An address of loopback that no other test uses, and no connection as its source.
fn address(test: u8) -> SocketAddr {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let host = [127, 1 + test * 64 + high % 64, middle, low.max(1)];
    SocketAddr::from((host, 9464))
}

fn fetch(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream
        .set_read_timeout(Some(takt_testing::PATIENCE))
        .expect("a timeout");
    write!(
        stream,
        "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )
    .expect("write");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("read");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer");
    (head.to_owned(), body.to_owned())
}

#[test]
fn the_page_has_lanes_ports_tenants_channels_and_peers() {
    let address = address(0);
    let more = format!(
        "[metrics]\naddress = \"{address}\"\n[[peer]]\naddress = \"127.0.0.2\"\n\
         [datapath.xdp]\ninterface = \"takt-t-none\"\n{LISTENER}identity = \"press\"\n"
    );
    let daemon = Daemon::start(&more);
    let session = daemon.application("app");
    let stream = session.stream(Qos::slow()).expect("a stream");
    let source = stream.source(ChannelId(7)).expect("a source");
    source.buffer(3).expect("a buffer").emit().expect("emitted");
    until("the message is counted", || {
        let (_, page) = fetch(address, "GET /metrics");
        page.contains("takt_tenant_emitted_total{tenant=\"press\"} 1\n")
            .then_some(())
    });
    let (head, page) = fetch(address, "GET /metrics");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("application/openmetrics-text"), "{head}");
    for expected in [
        "takt_node_info{name=\"test\",version=\"",
        "takt_lane_polls_total{lane=\"0\"}",
        "takt_lane_busy_seconds_total{lane=\"0\"}",
        "takt_lane_sessions{lane=\"0\"} 1",
        "takt_port_tx_bytes_total{lane=\"0\",datapath=\"udp\",local=\"127.0.0.1:",
        "takt_tenant_sessions{tenant=\"press\"} 1",
        "takt_tenant_emitted_bytes_total{tenant=\"press\"} 3",
        "takt_channels 1",
        "takt_channel_sources{channel=\"7\"} 1",
        "takt_channel_no_sink_total{channel=\"7\"} 1",
        "takt_peer_up{peer=\"127.0.0.2:7400\",name=\"\"} 0",
        "takt_listener_refused_total{path=",
        "takt_datapath_available{datapath=\"udp\"} 1",
        "takt_datapath_available{datapath=\"xdp\"} 0",
        "takt_peering_refused_total{reason=\"stranger\"} 0",
        "\n# EOF\n",
    ] {
        assert!(page.contains(expected), "{expected} in\n{page}");
    }
    // Ending a session takes nothing from what its tenant has counted.
    drop((source, stream, session));
    until("the session has ended", || {
        let (_, page) = fetch(address, "GET /metrics");
        page.contains("takt_tenant_ended_sessions_total{tenant=\"press\"} 1\n")
            .then_some(())
    });
    let (_, page) = fetch(address, "GET /metrics");
    assert!(
        page.contains("takt_tenant_emitted_total{tenant=\"press\"} 1\n"),
        "{page}"
    );
}

#[test]
fn a_link_where_the_kernel_was_to_keep_what_others_send_says_that_it_does_not() {
    let address = address(2);
    let directory = takt_testing::Directory::new();
    let file = directory.join("schedule.toml");
    std::fs::write(
        &file,
        "cycle-time = \"1s\"\n[[entry]]\ngates = [0, 7]\ninterval = \"1s\"\n",
    )
    .expect("written");
    // The loopback has one queue, and taprio needs two.
    let more = format!(
        "[metrics]\naddress = \"{address}\"\n{LISTENER}[[schedule]]\ndatapath = \"udp\"\nfile = \"{}\"\nother_traffic = \"auto\"\n",
        file.display()
    );
    let _daemon = Daemon::start(&more);
    let (_, page) = fetch(address, "GET /metrics");
    let expected = "takt_schedule_other_traffic_kept{datapath=\"udp\"} 0.0\n";
    assert!(page.contains(expected), "{page}");
}

#[test]
fn only_one_page_is_served_and_only_to_be_read() {
    let address = address(1);
    let daemon = Daemon::start(&format!("[metrics]\naddress = \"{address}\"\n{LISTENER}"));
    let (head, body) = fetch(address, "GET /");
    assert!(head.starts_with("HTTP/1.1 404"), "{head}");
    assert!(body.contains("/metrics"), "{body}");
    let (head, _) = fetch(address, "POST /metrics");
    assert!(head.starts_with("HTTP/1.1 405"), "{head}");
    // Whoever connects and says nothing keeps nobody from stopping.
    let _silent = TcpStream::connect(address).expect("connect");
    daemon.signal(15);
    let (code, log, _directory) = daemon.end();
    assert_eq!(code, Some(0), "{log}");
}
