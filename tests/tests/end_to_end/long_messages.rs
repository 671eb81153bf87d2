//! Messages of 16 MiB, whole and with one fragment lost on the way.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use takt::{ChannelId, Outcome, Session, Sink, Source, Token, Wait};
use takt_lab::{LabConfig, Wiring};

use crate::support::{Datapath, Pair, introduce, number_of, put, skip, take};
use takt_testing::PATIENCE;

const CHANNEL: ChannelId = ChannelId(0x0123_4567_89ab_cdef);
const LENGTH: usize = 16 << 20;
/// The fragment that goes missing: somewhere in the middle.
const FRAGMENT: u32 = 5000;

/// One datagram for each fragment, so that exactly one can be dropped.
const NO_TRAINS: &str = "[datapath.udp]\nsegmentation = false\n";

/// Room for two whole messages in short frames, on a machine whose cores do other work when it comes.
const ROOM: &str = "rx_ring = 32768\n";

/// A filter in the bridge between the hosts, until it is dropped.
pub struct Filter {
    namespace: String,
}

impl Filter {
    /// Drops one fragment of one message, or of each. Offsets are those of `docs/reference/wire-format.md`, in bits behind
    /// the UDP header: the datagram's header has 24 bytes; of the record's, the channel is at 0, the sequence
    /// number at 12, the fragment's index at 24. Little-endian, which nft compares as big-endian.
    fn dropping(namespace: String, sequence: Option<u64>, fragment: u32) -> Self {
        let record = (8 + 24) * 8;
        let sequence = sequence.map_or_else(String::new, |sequence| {
            let value = (sequence as u32).swap_bytes();
            format!("@th,{},32 {value:#010x}", record + 96)
        });
        Self::with(
            namespace,
            &format!(
                "@th,{record},64 {:#018x} {sequence} @th,{},32 {:#010x}",
                CHANNEL.0.swap_bytes(),
                record + 192,
                fragment.swap_bytes(),
            ),
        )
    }

    /// Drops so many of a hundred datagrams between lanes, either way.
    pub fn losing(namespace: String, percent: u32) -> Self {
        // Version 2, whatever the protection: of channel datagrams, and of no peering message.
        Self::with(
            namespace,
            &format!("@th,64,8 0x02 numgen random mod 100 < {percent}"),
        )
    }

    fn with(namespace: String, matches: &str) -> Self {
        let rules = format!(
            "table bridge takt {{
                chain pass {{
                    type filter hook forward priority 0; policy accept;
                    ether type ip ip protocol udp {matches} counter drop
                }}
            }}\n"
        );
        let filter = Self { namespace };
        let mut nft = filter
            .nft(&["-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("nft (of nftables)");
        let mut stdin = nft.stdin.take().expect("its input");
        stdin.write_all(rules.as_bytes()).expect("written");
        drop(stdin);
        assert!(nft.wait().expect("its end").success());
        filter
    }

    /// Datagrams dropped so far.
    pub fn dropped(&self) -> u64 {
        let output = self
            .nft(&["list", "table", "bridge", "takt"])
            .output()
            .expect("nft");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut words = text
            .split_whitespace()
            .skip_while(|word| *word != "packets");
        let count = words
            .nth(1)
            .unwrap_or_else(|| panic!("no counter in {text}"));
        count.parse().expect("a number")
    }

    fn nft(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command
            .args(["netns", "exec", &self.namespace, "nft"])
            .args(arguments);
        command
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        let lifted = self.nft(&["delete", "table", "bridge", "takt"]).status();
        let lifted = lifted.expect("nft").success();
        assert!(lifted || std::thread::panicking());
    }
}

/// Sends a long message while somebody reads. Its sequence number; `None`: it was lost, which is counted.
fn pass(source: &Source, sink: &Sink, number: u64) -> Option<u64> {
    let lost = sink.counters().lost;
    put(source, number, LENGTH);
    takt_testing::until(
        &format!("message {number} comes or is counted"),
        || match sink.consume(Wait::For(Duration::from_millis(50))) {
            Ok(message) => {
                assert_eq!(message.len(), LENGTH);
                assert_eq!(number_of(&message), number);
                Some(Some(message.sequence()))
            }
            Err(_) => (sink.counters().lost > lost).then_some(None),
        },
    )
}

/// Frames that the links between two nodes have lost so far, where the kernel or a port had no room for them: it happens when
/// other programs keep all cores.
fn lost_by_links(pair: &Pair) -> u64 {
    let names = ["h1", "h2", "switch"].map(|host| format!("{}-{host}", pair.lab.name()));
    let interfaces = names.iter().flat_map(|namespace| {
        let mut ip = Command::new("ip");
        ip.args(["-netns", namespace, "-statistics", "-json", "link"]);
        let answer = ip.output().expect("ip").stdout;
        let links: Vec<serde_json::Value> = serde_json::from_slice(&answer).expect("its answer");
        links
    });
    let dropped = |link: &serde_json::Value, way: &str| {
        link["stats64"][way]["dropped"].as_u64().expect("a number")
    };
    let by_interfaces: u64 = interfaces
        .map(|link| dropped(&link, "rx") + dropped(&link, "tx"))
        .sum();
    let lanes = (pair.nodes.iter()).flat_map(|node| node.admin().node().lanes);
    let ports = lanes.flat_map(|lane| lane.ports);
    let by_ports: u64 = ports
        .map(|port| port.counters.expect("counters").rx_dropped)
        .sum();
    // The queues between the links: dropped is the second column, of each core.
    let queues = std::fs::read_to_string("/proc/net/softnet_stat").expect("its statistics");
    let by_queues: u64 = queues
        .lines()
        .filter_map(|core| u64::from_str_radix(core.split_whitespace().nth(1)?, 16).ok())
        .sum();
    by_interfaces + by_ports + by_queues
}

/// Nodes at a bridge, with more sections, and a session at each with the memory that sessions have.
pub fn nodes(datapath: Datapath, more: &str) -> (Pair, [Session; 2]) {
    let config = LabConfig {
        wiring: Wiring::Bridge,
        ..LabConfig::default()
    };
    let room = match datapath {
        Datapath::Udp => "",
        Datapath::Xdp => ROOM,
    };
    let sections = format!("{}{room}{NO_TRAINS}{more}", datapath.section());
    let pair = Pair::with(&config, &sections);
    let sessions = pair.nodes.each_ref().map(|node| {
        Session::builder()
            .socket(node.socket())
            .request_timeout(PATIENCE)
            .open()
            .expect("a session")
    });
    (pair, sessions)
}

fn long_messages(datapath: Datapath) {
    if skip() {
        return;
    }
    // None is given up because somebody else had all cores for a while; and what the links lose is counted in time.
    let (pair, [near, far]) = nodes(datapath, "[limits]\nreassembly_timeout_ms = 15000\n");
    let streams = [&near, &far].map(|session| session.stream(datapath.qos()).expect("a stream"));
    assert_eq!(streams[0].datapath(), datapath.name());
    let source = streams[0].source(CHANNEL).expect("a source");
    let sink = streams[1].sink(CHANNEL).expect("a sink");
    introduce(&source, &[&sink]);
    // On a busy machine the links may lose a frame by themselves, which may be counted when the next message has come.
    let by_links = lost_by_links(&pair);
    let passes = (0..20).any(|_| {
        let passed = lose_a_fragment(&pair, &source, &sink);
        assert!(
            passed.is_some() || lost_by_links(&pair) > by_links,
            "a message was lost, and no frame: {:?}",
            sink.counters()
        );
        passed.is_some()
    });
    assert!(passes, "the links lost frames twenty times");
    // Nothing of the incomplete one is left: what it took is there for others.
    let given_up = pair.nodes[1].admin().node().lanes[0]
        .counters
        .expect("counters")
        .reassembly_refused;
    assert_eq!(given_up, 0);
}

/// Long messages, of which one loses a fragment. `None`: another one did as well.
fn lose_a_fragment(pair: &Pair, source: &Source, sink: &Sink) -> Option<()> {
    let before = sink.counters();
    let mut sequence = 0;
    for number in 0..3 {
        sequence = pass(source, sink, number)?;
    }
    if sink.counters().lost > before.lost {
        return None;
    }

    let switch = format!("{}-switch", pair.lab.name());
    let filter = Filter::dropping(switch, Some(sequence + 2), FRAGMENT);
    assert_eq!(pass(source, sink, 3)?, sequence + 1);
    assert_eq!(filter.dropped(), 0);
    // The one that loses a fragment, and at once another.
    put(source, 4, LENGTH);
    put(source, 5, LENGTH);
    let next =
        takt_testing::until(
            "the loss is counted, and the next one comes or is",
            || match sink.consume(Wait::For(Duration::from_millis(50))) {
                Ok(message) => Some(Some((number_of(&message), message.sequence()))),
                Err(_) => (sink.counters().lost - before.lost > 1).then_some(None),
            },
        )?;
    assert_eq!(next, (5, sequence + 3));
    assert_eq!(filter.dropped(), 1, "exactly one datagram");
    takt_testing::until_true("the loss is counted", || sink.counters().lost > before.lost);
    for number in 6..9 {
        pass(source, sink, number)?;
    }
    let after = sink.counters();
    let lost = after.lost - before.lost;
    assert_eq!((lost, after.dropped_full, after.dropped_memory), (1, 0, 0));
    Some(())
}

#[test]
fn a_long_message_that_loses_a_fragment_counts_as_lost_and_the_next_arrive_over_kernel_udp() {
    long_messages(Datapath::Udp);
}

#[test]
fn a_long_message_that_loses_a_fragment_counts_as_lost_and_the_next_arrive_over_af_xdp() {
    long_messages(Datapath::Xdp);
}

/// Two long messages that never become whole hold all that such ones may of the reader's memory.
fn unfinished_messages(datapath: Datapath) {
    if skip() {
        return;
    }
    // The longest that there is: they are given up after the test.
    let (pair, [near, far]) = nodes(datapath, "[limits]\nreassembly_timeout_ms = 60000\n");
    let streams = [&near, &far].map(|session| session.stream(datapath.qos()).expect("a stream"));
    assert_eq!(streams[0].datapath(), datapath.name());
    let ends = [CHANNEL, ChannelId(6)].map(|channel| {
        let source = streams[0].source(channel).expect("a source");
        let sink = streams[1].sink(channel).expect("a sink");
        introduce(&source, &[&sink]);
        (source, sink)
    });
    let switch = format!("{}-switch", pair.lab.name());
    let filter = Filter::dropping(switch, None, FRAGMENT);
    let long = [(); 2].map(|()| streams[0].source(CHANNEL).expect("a source"));
    for source in &long {
        put(source, 0, LENGTH);
        takt_testing::until_true("it has left", || source.pending() == 0);
    }
    takt_testing::until_true("both have lost a fragment", || filter.dropped() == 2);
    // To the same sink, and to another of its session.
    for (source, sink) in &ends {
        for number in 0..10 {
            put(source, number, 16);
            assert_eq!(take(sink), number);
        }
        let counters = sink.counters();
        assert_eq!((counters.dropped_memory, counters.dropped_full), (0, 0));
    }
    let lane = pair.nodes[1].admin().node().lanes.remove(0);
    let counters = lane.counters.expect("counters");
    let ended = (counters.reassembly_refused, counters.reassembly_expired);
    assert_eq!(ended, (0, 0), "both are still unfinished");
}

#[test]
fn unfinished_long_messages_leave_room_for_small_ones_over_kernel_udp() {
    unfinished_messages(Datapath::Udp);
}

#[test]
fn unfinished_long_messages_leave_room_for_small_ones_over_af_xdp() {
    unfinished_messages(Datapath::Xdp);
}

/// Messages of all lengths, some of 16 MiB, by a reliable source over a link that loses datagrams both ways.
fn reliable_messages(datapath: Datapath) {
    if skip() {
        return;
    }
    let (pair, [near, far]) = nodes(datapath, "");
    let stream = near.stream(datapath.qos().reliable()).expect("a stream");
    assert_eq!(stream.datapath(), datapath.name());
    // Sinks get what the source promises.
    let heard = far.stream(datapath.qos()).expect("a stream");
    let source = stream.source(CHANNEL).expect("a source");
    let sink = heard.sink(CHANNEL).expect("a sink");
    source.wait_reader(Wait::For(PATIENCE)).expect("a reader");
    let filter = Filter::losing(format!("{}-switch", pair.lab.name()), 1);
    let lengths = [64, 1000, 5000, 200_000, 64, LENGTH];
    let count = 120;
    let (tokens, sink) = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            for number in 0..count {
                let message = sink.consume(Wait::For(PATIENCE)).unwrap_or_else(|error| {
                    panic!("message {number}: {error}: {:?}", sink.counters())
                });
                assert_eq!((number_of(&message), message.sequence()), (number, number));
                assert_eq!(message.len(), lengths[number as usize % lengths.len()]);
            }
            sink
        });
        let tokens: Vec<Token> = (0..count)
            .map(|number| put(&source, number, lengths[number as usize % lengths.len()]))
            .collect();
        (tokens, reader.join().expect("the reader"))
    });
    for token in tokens {
        let outcome = takt_testing::until("it is acknowledged", || {
            let outcome = source.outcome(token);
            (outcome != Outcome::Pending).then_some(outcome)
        });
        assert!(
            matches!(outcome, Outcome::Sent | Outcome::Unknown),
            "{outcome:?}"
        );
    }
    let counters = sink.counters();
    assert_eq!(
        (
            counters.lost,
            counters.dropped_full,
            counters.dropped_memory
        ),
        (0, 0, 0)
    );
    let repaired = pair.nodes[0].admin().channel(CHANNEL.0).repaired;
    let dropped = filter.dropped();
    assert!(dropped > 500, "{dropped}: nothing was shown");
    assert!(
        repaired > dropped / 4,
        "{repaired} records repaired, {dropped} datagrams dropped"
    );
}

#[test]
fn reliable_messages_of_all_lengths_arrive_over_a_link_that_loses_some_over_kernel_udp() {
    reliable_messages(Datapath::Udp);
}

#[test]
fn reliable_messages_of_all_lengths_arrive_over_a_link_that_loses_some_over_af_xdp() {
    reliable_messages(Datapath::Xdp);
}
