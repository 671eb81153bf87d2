//! `takt capture`.

pub mod copy;

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use clap::Args;
use serde::Serialize;
use takt_capture::pcapng::Writer;
use takt_wire::channel::{DatagramHeader, RecordHeader};
use takt_wire::ethernet;
use taktd::admin::client::Client;
use taktd::admin::proto::{CaptureRequest, CaptureResponse, CapturedPacket, GetClockRequest};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, json_line, name, print};

const HELP: &str = "\
What goes past the kernel is not seen by tcpdump in a pod or on the host: this is. Copied are messages of channels as the records
that leave for other nodes and come from them, repetitions of reliable streams included, each as a datagram of its own and
readable whatever protects them on the wire; and the frames of networks that tenants send, as they gave them, before they are
wrapped or routed (what comes for them, their kernel receives). Times are those at which the datapath took what has a launch time or
passes gates, and of all else when the lane's round began. What stays on the node is not copied, nor what reliable streams say
of themselves.

A copy costs the lane some of the time of sending it. If more comes than is taken, copies are left out and counted, the
traffic goes on. Four captures of a node can run at a time.

In Wireshark and tshark, the dissector that comes with Takt (deploy/wireshark/takt.lua) shows what is in messages; packets have the tenant as
their comment, and whether they came or went. SIGINT ends it; a summary goes to standard error.

Examples:
  takt capture
  takt capture press --write press.pcapng --for 10s
  takt capture press -w - | wireshark -k -i - -X lua_script:takt.lua";

/// Shows or writes what tenants send and get past the kernel.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Capture {
    /// Only of these tenants, by their identities [default: all]
    #[arg(value_name = "TENANT")]
    identities: Vec<String>,
    /// Write pcapng to a file instead; - is standard output
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    write: Option<PathBuf>,
    /// Keep so many bytes of each datagram or frame, 1 to 65536 [default: all]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=65536))]
    snap: Option<u32>,
    /// End after so many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = crate::time::parse)]
    lasts: Option<Duration>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

/// A copy as JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    tai_ns: i64,
    utc_ns: i64,
    identity: &'a str,
    received: bool,
    class: u32,
    #[serde(skip_serializing_if = "str::is_empty")]
    peer: &'a str,
    length: u32,
    #[serde(flatten)]
    what: What,
}

/// What a copy is of, as far as its first bytes tell.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum What {
    Message {
        channel: u64,
        source: u32,
        sequence: u32,
        message_length: u32,
        fragment: u32,
        send_time_ns: i64,
    },
    Frame {
        destination: String,
        source_mac: String,
        ether_type: u16,
    },
    /// They are too few.
    Unknown {},
}

impl What {
    fn of(packet: &CapturedPacket) -> Self {
        if packet.frame {
            let Ok(frame) = ethernet::Packet::new_checked(&packet.packet[..]) else {
                return Self::Unknown {};
            };
            return Self::Frame {
                destination: frame.destination().to_string(),
                source_mac: frame.source().to_string(),
                ether_type: frame.ether_type().0,
            };
        }
        let Ok((header, body)) = DatagramHeader::parse(&packet.packet) else {
            return Self::Unknown {};
        };
        let Ok((record, _)) = RecordHeader::parse(body.records) else {
            return Self::Unknown {};
        };
        Self::Message {
            channel: record.channel,
            source: record.source,
            sequence: record.sequence,
            message_length: record.message_length,
            fragment: record.fragment_index,
            send_time_ns: header.send_time_ns,
        }
    }
}

/// Where copies go.
enum Output {
    /// Lines that are not printed yet.
    Text(String),
    Json(String),
    File(Writer<BufWriter<Box<dyn Write>>>),
}

impl Output {
    fn file(path: &Path) -> Result<Self, Failure> {
        let file: Box<dyn Write> = match path == Path::new("-") {
            true => Box::new(std::io::stdout()),
            false => Box::new(File::create(path).map_err(|error| {
                Failure::Other(format!("cannot write {}: {error}", path.display()))
            })?),
        };
        Writer::new(BufWriter::new(file), MOST_SNAP)
            .map(Self::File)
            .map_err(written)
    }

    fn packet(&mut self, packet: &CapturedPacket, tai_offset_s: i64) -> Result<(), Failure> {
        let utc_ns = packet.tai_ns - tai_offset_s * 1_000_000_000;
        match self {
            Self::Text(lines) => {
                lines.push_str(&text(packet, utc_ns));
                Ok(())
            }
            Self::Json(lines) => {
                lines.push_str(&json_line(&Line {
                    tai_ns: packet.tai_ns,
                    utc_ns,
                    identity: &packet.identity,
                    received: packet.received,
                    class: packet.class,
                    peer: &packet.peer,
                    length: packet.length,
                    what: What::of(packet),
                })?);
                Ok(())
            }
            Self::File(writer) => {
                copy::write(writer, packet, tai_offset_s * 1_000_000_000).map_err(written)
            }
        }
    }

    fn flush(&mut self) -> Result<(), Failure> {
        match self {
            Self::Text(lines) | Self::Json(lines) => print(&std::mem::take(lines)),
            Self::File(writer) => writer.flush().map_err(written),
        }
    }
}

fn written(error: std::io::Error) -> Failure {
    Failure::Other(format!("cannot write the capture: {error}"))
}

/// Most bytes of a packet in a file: the longest copy, and what is in front of it.
const MOST_SNAP: u32 = 1 << 17;

/// A copy as a line.
fn text(packet: &CapturedPacket, utc_ns: i64) -> String {
    let since = Duration::from_nanos(u64::try_from(utc_ns).unwrap_or(0));
    let time = humantime::format_rfc3339_nanos(UNIX_EPOCH + since);
    let (way, preposition) = match packet.received {
        true => ("in ", "from"),
        false => ("out", "to"),
    };
    let what = match What::of(packet) {
        What::Message {
            channel,
            source,
            sequence,
            message_length,
            fragment,
            ..
        } => {
            let part = match packet.length < message_length {
                true => format!(", fragment {fragment}"),
                false => String::new(),
            };
            format!(
                "channel {channel}, message {sequence} of source {source}, {message_length} bytes{part}"
            )
        }
        What::Frame {
            destination,
            source_mac,
            ether_type,
        } => format!(
            "frame {source_mac} > {destination}, EtherType {ether_type:#06x}, {} bytes",
            packet.length
        ),
        What::Unknown {} => format!("{} bytes", packet.length),
    };
    let peer = match packet.peer.as_str() {
        "" => String::new(),
        peer => format!(", {preposition} {peer}"),
    };
    let tenant = name(&packet.identity);
    format!(
        "{time} {way} {tenant}: {what}, class {}{peer}\n",
        packet.class
    )
}

impl Capture {
    pub fn run(self) -> Result<(), Failure> {
        let daemon = self.daemon.clone();
        daemon.ask(async |client| self.take(client).await)
    }

    async fn take(self, mut client: Client) -> Result<(), Failure> {
        let clock = client.get_clock(GetClockRequest::default()).await?;
        let offset = clock.into_inner().clock.map_or(0, |c| c.tai_offset_seconds);
        let request = CaptureRequest {
            identities: self.identities,
            snap: self.snap.unwrap_or(0),
        };
        let mut answers = client.capture(request).await?.into_inner();
        let mut output = match (&self.write, self.form.json) {
            (Some(path), _) => Output::file(path)?,
            (None, true) => Output::Json(String::new()),
            (None, false) => Output::Text(String::new()),
        };
        let watch = |kind| signal(kind).map_err(Failure::io("watch for signals"));
        let mut interrupt = watch(SignalKind::interrupt())?;
        let mut terminate = watch(SignalKind::terminate())?;
        let begun = Instant::now();
        let until = self.lasts.and_then(|lasts| begun.checked_add(lasts));
        let ended = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(ended);
        let (mut taken, mut lost) = (0, 0);
        let most = self.count.unwrap_or(u64::MAX);
        let mut failed = None;
        let mut first = true;
        while taken < most {
            let answer: CaptureResponse = tokio::select! {
                answer = answers.message() => match answer {
                    Ok(Some(answer)) => answer,
                    Ok(None) => break,
                    Err(status) => {
                        failed = Some(status);
                        break;
                    }
                },
                () = &mut ended => break,
                _ = interrupt.recv() => break,
                _ = terminate.recv() => break,
            };
            if std::mem::take(&mut first) {
                eprintln!("takt: capturing; SIGINT ends it");
            }
            lost = answer.lost;
            for packet in answer.packets {
                if taken == most {
                    break;
                }
                taken += 1;
                output.packet(&packet, offset.into())?;
            }
            output.flush()?;
        }
        output.flush()?;
        eprintln!("takt: {taken} captured, {lost} left out for want of room");
        failed.map_or(Ok(()), |status| Err(status.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_say_nothing_make_a_line_all_the_same() {
        for (frame, packet) in [
            (true, vec![1, 2]),
            (false, vec![9; 30]),
            (false, Vec::new()),
        ] {
            let length = 1000;
            let packet = CapturedPacket {
                identity: "a\u{202e}b".into(),
                length,
                frame,
                packet,
                ..CapturedPacket::default()
            };
            let line = text(&packet, -1);
            assert!(
                line.contains("out a\\u{202e}b: 1000 bytes, class 0\n"),
                "{line}"
            );
        }
    }
}
