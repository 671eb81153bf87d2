//! Runs in the virtual machine: carries out cases and writes down what the kernel did.
//!
//! Usage: `oracle-guest CASES RESULTS`. One line of JSON per case goes to RESULTS, a serial line.

use std::io;
use std::io::Write;
use std::process::Command;

mod datapath;
mod packets;

use packets::{Packets, now, sleep_until};
use takt_oracle::{Case, ETHERNET_TO_PAYLOAD, ETHERTYPE, Frame, HEADER, Observed, PEER_PORT};

/// More than a command of the set-up takes.
const COMMAND_NS: i64 = 80_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let text = std::fs::read(&arguments[1]).expect("the cases");
    let cases: Vec<Case> = serde_json::from_slice(&text).expect("cases");
    let results = std::fs::OpenOptions::new().write(true).open(&arguments[2]);
    let mut results = io::BufWriter::new(results.expect("a serial line"));
    for (number, case) in cases.iter().enumerate() {
        println!("case {number} of {}: {:?}", cases.len(), case.kind);
        let observed = run(case);
        let line = serde_json::to_string(&observed).expect("JSON");
        writeln!(results, "{line}")
            .and_then(|()| results.flush())
            .expect("written");
    }
}

fn run(case: &Case) -> Observed {
    let mut observed = Observed::default();
    let plain = Packets::open(&case.device);
    let launch = Packets::open(&case.device);
    launch.set_launch_times(case.frames.iter().any(|frame| frame.deadline));
    let capture = Packets::open(&case.capture);
    capture.listen();
    let start = now() + COMMAND_NS * (case.setup.len() as i64 + 1);
    observed.start_ns = start;
    for command in &case.setup {
        shell(command, start, &mut observed.failures);
    }
    if now() > start {
        observed.failures.push("the set-up took too long".into());
    }
    let mut later = case.later.iter().peekable();
    let mut change = |until: i64, observed: &mut Observed| {
        while let Some((at, command)) = later.next_if(|(at, _)| *at <= until) {
            sleep_until(start + at);
            shell(command, start, &mut observed.failures);
            observed.changed.push(now());
        }
    };
    let mut sender = case
        .by_datapath()
        .then(|| datapath::Sender::open(case, &mut observed.failures));
    for (number, frame) in case.frames.iter().enumerate() {
        change(frame.at_ns, &mut observed);
        sleep_until(start + frame.at_ns);
        let socket = if frame.launch_ns.is_some() {
            &launch
        } else {
            &plain
        };
        let octets = octets(number, frame);
        let before = now();
        match &mut sender {
            Some(sender) => sender.send(number, frame, start),
            None => socket.send(frame, start, &octets),
        }
        observed.sent.push((before, now()));
    }
    change(case.run_ns, &mut observed);
    sleep_until(start + case.run_ns);
    observed.captured = captured(&capture);
    observed.reports = launch.reports();
    observed.lost = sender.map_or(0, |mut sender| sender.lost());
    let mut ignored = Vec::new();
    shell(
        &format!("tc qdisc del dev {} root", case.device),
        0,
        &mut ignored,
    );
    observed
}

/// Runs a command whose `base-time` is counted from `start`.
fn shell(command: &str, start: i64, failures: &mut Vec<String>) {
    let mut words = Vec::new();
    let mut base = false;
    for word in command.split_whitespace().filter(|word| *word != "\\") {
        match word.parse::<i64>() {
            Ok(offset) if base => words.push((start + offset).to_string()),
            _ => words.push(word.to_owned()),
        }
        base = word == "base-time";
    }
    let output = Command::new(&words[0]).args(&words[1..]).output();
    let output = output.expect("a command of the initial file system");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        failures.push(format!("{}: {}", words.join(" "), said.trim()));
    }
}

/// A frame that carries its number.
fn octets(number: usize, frame: &Frame) -> Vec<u8> {
    let mut octets = vec![0; frame.len];
    octets[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    octets[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    octets[12..HEADER].copy_from_slice(&ETHERTYPE.to_be_bytes());
    octets[HEADER..HEADER + 8].copy_from_slice(&(number as u64).to_be_bytes());
    octets
}

/// The number of a captured frame, if it is one of ours.
fn number(octets: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(u16::from_be_bytes(*octets.get(at..)?.first_chunk()?));
    let at = match word(12)? {
        ETHERTYPE => HEADER,
        0x0800 if word(HEADER + 22)? == PEER_PORT => ETHERNET_TO_PAYLOAD,
        _ => return None,
    };
    let number = octets.get(at..)?.first_chunk()?;
    Some(u64::from_be_bytes(*number) as usize)
}

/// Every frame of ours that came, with the time that the kernel gave it.
fn captured(capture: &Packets) -> Vec<(usize, i64)> {
    let arrivals = capture.arrivals().into_iter();
    arrivals
        .filter_map(|(octets, at)| Some((number(&octets)?, at)))
        .collect()
}
