//! What a packet costs network health, by the number of flows, beside tshark on the same capture.
//!
//! Run with `cargo bench -p takt-health`, on an otherwise idle machine for figures to quote. Packets are RTP over UDP (160
//! bytes of G.711), flow after flow, so that a flow's state is the one used longest ago; one specification with all limits and
//! one rule stand for every flow. *Memory*: [`Table::take`] alone, processor time in batches. *Capture*: a pcap file, read and
//! taken by `takt-capture` and [`Table::take`], and by tshark, which counts UDP conversations in one run and RTP streams with
//! their jitter and loss in another; processor time of the whole. Without tshark its columns are empty.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use takt_capture::file::Reader;
use takt_health::packet::LinkType;
use takt_health::spec::Document;
use takt_health::table::{Config, Table};

const BATCHES: usize = 40;
const BATCH: u64 = 50_000;
const PERIOD_NS: i64 = 30_000_000;
const START_NS: i64 = 1_700_000_000_000_000_000;
const FLOWS: [u64; 3] = [1, 1_000, 1_000_000];
/// Packets of a capture; at least two of each flow.
const PACKETS: u64 = 500_000;

const RULES: &str = r#"
[[flow]]
name = "call"
match = "udp * > *"
period = "30ms"
tolerance = "10ms"
max-delay = "10ms"
max-jitter = "5ms"
max-loss = "1%"
stamp = "rtp"

[[rule]]
name = "late"
when = "deviation > 10ms or loss > 1%"
until = "deviation < 5ms and loss == 0"
do = ["event"]
"#;

/// Packet `number` of all.
struct Packets {
    frame: Vec<u8>,
    flows: u64,
}

impl Packets {
    fn new(flows: u64) -> Self {
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0, 0, 200];
        frame.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 192, 168, 0, 2]);
        frame.extend([0, 0, 0x13, 0x8c, 0, 180, 0, 0]);
        // RTP version 2, payload type 8 (RFC 3551).
        frame.extend([0x80, 8]);
        frame.resize(42 + 12 + 160, 0);
        Self { frame, flows }
    }

    fn at(&mut self, number: u64) -> (i64, &[u8]) {
        let (flow, round) = (number % self.flows, number / self.flows);
        let name = (flow as u32).to_be_bytes();
        let frame = &mut self.frame;
        frame[27..30].copy_from_slice(&name[1..]);
        frame[34..36].copy_from_slice(&(1024 + (flow % 50_000) as u16).to_be_bytes());
        frame[44..46].copy_from_slice(&(round as u16).to_be_bytes());
        frame[46..50].copy_from_slice(&((round * 240) as u32).to_be_bytes());
        frame[50..54].copy_from_slice(&name);
        let spacing = PERIOD_NS / self.flows as i64;
        let now_ns = START_NS + round as i64 * PERIOD_NS + flow as i64 * spacing;
        (now_ns, &self.frame)
    }
}

fn table() -> Table {
    let document = Document::read(RULES).expect("rules");
    Table::new(Config::default(), document)
}

fn main() {
    println!("machine: {}", processor());
    println!(
        "memory: processor time of a packet, ns ({BATCHES} batches of {BATCH}), and M packets/s at p50"
    );
    println!(
        "{:>8}  {:>7} {:>7} {:>7} {:>7} {:>8}",
        "flows", "min", "p50", "p90", "max", "M/s"
    );
    for flows in FLOWS {
        let mut costs = memory(flows);
        costs.sort_by(f64::total_cmp);
        let at = |share: f64| costs[((BATCHES - 1) as f64 * share).round() as usize];
        println!(
            "{flows:>8}  {:>7.1} {:>7.1} {:>7.1} {:>7.1} {:>8.2}",
            at(0.0),
            at(0.5),
            at(0.9),
            at(1.0),
            1e3 / at(0.5)
        );
    }
    println!(
        "\ncapture: processor time of a packet, ns: read and taken; tshark -z conv,udp; tshark -z rtp,streams"
    );
    println!(
        "{:>8} {:>9}  {:>9} {:>10} {:>10}",
        "flows", "packets", "takt", "conv,udp", "rtp,streams"
    );
    for flows in FLOWS {
        let path = std::env::temp_dir().join(format!("takt-health-{}.pcap", std::process::id()));
        let packets = PACKETS.max(2 * flows);
        write(&path, flows, packets);
        let each =
            |ns: Option<f64>| ns.map_or("-".into(), |ns| format!("{:.0}", ns / packets as f64));
        println!(
            "{flows:>8} {packets:>9}  {:>9} {:>10} {:>10}",
            each(Some(capture(&path))),
            each(tshark(&path, "conv,udp")),
            each(tshark(&path, "rtp,streams")),
        );
        std::fs::remove_file(&path).expect("removed");
    }
}

fn memory(flows: u64) -> Vec<f64> {
    let (mut packets, mut table) = (Packets::new(flows), table());
    let mut number = 0;
    let mut play = |count: u64| {
        for _ in 0..count {
            let (now_ns, frame) = packets.at(number);
            let _ = black_box(table.take(now_ns, LinkType::Ethernet, frame, frame.len() as u32));
            number += 1;
        }
    };
    // Every flow is there, and has its distributions.
    play(20 * flows.clamp(BATCH / 20, 100_000) + 2 * flows);
    let costs = (0..BATCHES).map(|_| {
        let begin = processor_time_ns();
        play(BATCH);
        (processor_time_ns() - begin) as f64 / BATCH as f64
    });
    costs.collect()
}

/// A pcap file with nanoseconds.
fn write(path: &Path, flows: u64, count: u64) {
    let mut file = BufWriter::new(File::create(path).expect("a file"));
    let mut packets = Packets::new(flows);
    let mut put = |bytes: &[u8]| file.write_all(bytes).expect("written");
    put(&0xa1b2_3c4d_u32.to_le_bytes());
    put(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    put(&65_535_u32.to_le_bytes());
    put(&1_u32.to_le_bytes());
    for number in 0..count {
        let (now_ns, frame) = packets.at(number);
        let length = frame.len() as u32;
        for word in [
            (now_ns / 1_000_000_000) as u32,
            (now_ns % 1_000_000_000) as u32,
            length,
            length,
        ] {
            put(&word.to_le_bytes());
        }
        put(frame);
    }
}

fn capture(path: &Path) -> f64 {
    let begin = processor_time_ns();
    let file = BufReader::new(File::open(path).expect("the capture"));
    let mut reader = Reader::new(file).expect("a capture");
    let (mut table, mut bytes) = (table(), Vec::new());
    while let Some(meta) = reader.next(&mut bytes).expect("a packet") {
        let _ = black_box(table.take(meta.utc_ns, LinkType::Ethernet, &bytes, meta.length));
    }
    (processor_time_ns() - begin) as f64
}

/// Processor time of tshark.
fn tshark(path: &Path, statistic: &str) -> Option<f64> {
    let before = children_ns();
    let status = Command::new("tshark")
        .args(["-q", "-o", "rtp.heuristic_rtp:TRUE", "-z", statistic, "-r"])
        .arg(path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status
        .is_ok_and(|status| status.success())
        .then(|| children_ns() - before)
}

/// Of children that have ended: `cutime` and `cstime` of proc(5), in the hundredths of a second that Linux counts in.
fn children_ns() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").expect("proc");
    let behind = text.rsplit(')').next().unwrap_or_default();
    let ticks = behind.split_whitespace().skip(13).take(2);
    ticks
        .map(|ticks| ticks.parse::<f64>().expect("a number"))
        .sum::<f64>()
        * 1e7
}

fn processor_time_ns() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    model
        .map_or("unknown", |model| {
            model.trim_start_matches([' ', '\t', ':'])
        })
        .to_owned()
}
