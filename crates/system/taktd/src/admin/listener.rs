//! Listeners as the admin API writes them, checked by the rules of the configuration.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use takt_runtime::config::ListenerConfig;
use takt_runtime::policing::{DeclaredStream, Flow};
use takt_runtime::policy::Trust;
use takt_runtime::status::ListenerStatus;
use takt_wire::ethernet::MacAddress;

use super::proto;
use crate::config::file;
use crate::config::value::{Bytes, Channels, FileMode, FromText, Nanoseconds, Prefixed, Written};
use crate::config::{check_listener, classes_of, listener};

/// What to set.
///
/// # Errors
/// The field at fault and what would be right.
pub fn from_message(
    message: proto::Listener,
    admin_socket: &Path,
) -> Result<ListenerConfig, String> {
    let defaults = file::Listener::default();
    if message.mode > 0o777 {
        return Err(format!(
            "mode = 0{:o}: no permission bits, write at most 0777 (octal)",
            message.mode
        ));
    }
    if Path::new(&message.path) == admin_socket {
        return Err(format!(
            "path = {}: this is the admin socket, choose another",
            message.path
        ));
    }
    if message.classes.is_empty() {
        return Err("classes is empty: allow at least class 0, best effort".into());
    }
    let written = file::Listener {
        path: PathBuf::from(message.path),
        mode: match message.mode {
            0 => defaults.mode,
            mode => Written(FileMode(mode)),
        },
        identity: message.identity,
        uids: message.uids,
        write: ranges(message.write, "write")?,
        read: ranges(message.read, "read")?,
        // What does not fit is no class either way.
        classes: message
            .classes
            .iter()
            .map(|class| u8::try_from(*class).unwrap_or(u8::MAX))
            .collect(),
        messages_per_second: message.messages_per_second,
        bytes_per_second: Written(Bytes(message.bytes_per_second)),
        memory: match message.memory_bytes {
            0 => defaults.memory,
            bytes => Written(Bytes(bytes)),
        },
        total_memory: match message.total_memory_bytes {
            0 => defaults.total_memory,
            bytes => Some(Written(Bytes(bytes))),
        },
        sessions: or(message.sessions, defaults.sessions),
        endpoints: or(message.endpoints, defaults.endpoints),
        total_endpoints: or(message.total_endpoints, defaults.total_endpoints),
        descriptors: or(message.descriptors, defaults.descriptors),
        lanes: match message.lanes.is_empty() {
            true => None,
            false => Some(message.lanes.iter().map(|lane| *lane as usize).collect()),
        },
        endpoint: message.endpoint.map(endpoint).transpose()?,
        stream: message
            .streams
            .into_iter()
            .map(stream)
            .collect::<Result<_, _>>()?,
        undeclared: match message.undeclared_streams {
            true => file::Undeclared::Send,
            false => file::Undeclared::Refuse,
        },
        trust: match message.trust_user {
            true => file::Trust::User,
            false => file::Trust::Nobody,
        },
    };
    check_listener(&written)?;
    Ok(listener(&written))
}

fn or(value: u32, default: usize) -> usize {
    if value == 0 { default } else { value as usize }
}

fn endpoint(message: proto::Endpoint) -> Result<file::Endpoint, String> {
    let addresses = message.addresses.iter().map(|address| {
        let read = Prefixed::from_text(address).map(Written);
        read.ok_or_else(|| format!("endpoint.addresses = {address}: write {}", Prefixed::FORM))
    });
    Ok(file::Endpoint {
        network: message.network,
        mac: mac("endpoint.mac", &message.mac)?,
        addresses: addresses.collect::<Result<_, _>>()?,
        mtu: match message.mtu {
            0 => file::Endpoint::usual_mtu(),
            mtu => u16::try_from(mtu).map_err(|_| format!("endpoint.mtu = {mtu}: too large"))?,
        },
        ethertypes: message
            .ethertypes
            .iter()
            .map(|kind| {
                let narrow = u16::try_from(*kind);
                narrow.map_err(|_| format!("endpoint.ethertypes = {kind:#x}: no EtherType"))
            })
            .collect::<Result<_, _>>()?,
        vlans: message
            .vlans
            .iter()
            .map(|id| {
                let narrow = u16::try_from(*id);
                narrow.map_err(|_| format!("endpoint.vlans = {id}: no VLAN"))
            })
            .collect::<Result<_, _>>()?,
    })
}

fn stream(message: proto::DeclaredStream) -> Result<file::Stream, String> {
    let name = message.name;
    let text = message.destination;
    let destination = (!text.is_empty()).then(|| {
        let read = SocketAddr::from_text(&text).map(Written);
        read.ok_or_else(|| {
            format!(
                "stream `{name}`: destination = {text}: write {}",
                SocketAddr::FORM
            )
        })
    });
    Ok(file::Stream {
        name,
        // What does not fit is no class either way.
        class: u8::try_from(message.traffic_class).unwrap_or(u8::MAX),
        channel: message.channel,
        destination: destination.transpose()?,
        period: Written(Nanoseconds(message.period_ns)),
        offset: Written(Nanoseconds(message.offset_ns)),
        window: Written(Nanoseconds(message.window_ns)),
        frame: Written(Bytes(message.frame.into())),
        frames: match message.frames {
            0 => file::Stream::usual_frames(),
            frames => frames,
        },
    })
}

fn stream_message(stream: &DeclaredStream) -> proto::DeclaredStream {
    let talker = &stream.talker;
    let (channel, destination) = match stream.flow {
        Flow::Channel(channel) => (Some(channel.0), String::new()),
        Flow::Destination(address) => (None, address.to_string()),
    };
    proto::DeclaredStream {
        name: stream.name.clone(),
        traffic_class: talker.priority.number().into(),
        channel,
        destination,
        period_ns: talker.period_ns,
        offset_ns: talker.offset_ns,
        window_ns: talker.window_ns,
        frame: talker.octets,
        frames: talker.frames,
    }
}

/// A MAC address as written.
pub fn mac(field: &str, text: &str) -> Result<Written<MacAddress>, String> {
    let read = MacAddress::from_text(text).map(Written);
    read.ok_or_else(|| format!("{field} = {text}: write {}", MacAddress::FORM))
}

fn ranges(
    messages: Vec<proto::ChannelRange>,
    field: &str,
) -> Result<Vec<Written<Channels>>, String> {
    messages
        .into_iter()
        .map(|range| {
            if range.first > range.last {
                return Err(format!(
                    "{field} = {}-{}: the first channel is behind the last",
                    range.first, range.last
                ));
            }
            Ok(Written(Channels(range.first..=range.last)))
        })
        .collect()
}

/// A listener as it is.
pub fn to_message(status: ListenerStatus) -> proto::ListenerStatus {
    let policy = status.policy;
    let counted = policy.streams.iter().zip(status.streams);
    let counted = counted.map(|(stream, reading)| proto::DeclaredStreamCounters {
        name: stream.name.clone(),
        passed: reading.passed,
        refused_window: reading.refused_window,
        refused_size: reading.refused_size,
        refused_excess: reading.refused_excess,
    });
    let streams = counted.collect();
    let ranges = |ranges: Vec<std::ops::RangeInclusive<u64>>| {
        ranges
            .into_iter()
            .map(|range| proto::ChannelRange {
                first: *range.start(),
                last: *range.end(),
            })
            .collect()
    };
    proto::ListenerStatus {
        listener: Some(proto::Listener {
            path: status.path.to_string_lossy().into_owned(),
            mode: status.mode,
            identity: policy.identity,
            uids: policy.uids,
            write: ranges(policy.write),
            read: ranges(policy.read),
            classes: classes_of(policy.classes).map(u32::from).collect(),
            messages_per_second: policy.messages_per_second,
            bytes_per_second: policy.bytes_per_second,
            memory_bytes: policy.memory as u64,
            sessions: policy.sessions as u32,
            endpoints: policy.endpoints as u32,
            total_memory_bytes: policy.total_memory as u64,
            total_endpoints: policy.total_endpoints as u32,
            descriptors: policy.descriptors as u32,
            lanes: policy.lanes.iter().map(|lane| *lane as u32).collect(),
            streams: policy.streams.iter().map(stream_message).collect(),
            undeclared_streams: policy.undeclared_streams,
            trust_user: policy.trust == Trust::User,
            endpoint: policy.endpoint.map(|endpoint| proto::Endpoint {
                network: endpoint.network,
                mac: MacAddress(endpoint.mac).to_string(),
                addresses: endpoint
                    .addresses
                    .iter()
                    .map(|(address, prefix)| format!("{address}/{prefix}"))
                    .collect(),
                mtu: endpoint.mtu.into(),
                ethertypes: policy.ether_types.into_iter().map(u32::from).collect(),
                vlans: endpoint.vlans.into_iter().map(u32::from).collect(),
            }),
        }),
        sessions: status.sessions as u32,
        refused: status.refused,
        memory_bytes: status.memory as u64,
        endpoints: status.endpoints as u32,
        descriptors: status.descriptors as u32,
        unserved: super::convert::unserved(&status.unserved),
        streams,
        undeclared: status.undeclared,
        counters: Some(status.counters.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_runtime::policy::Policy;

    fn message() -> proto::Listener {
        proto::Listener {
            path: "/run/takt/press.sock".into(),
            identity: "press".into(),
            write: vec![proto::ChannelRange { first: 1, last: 9 }],
            classes: vec![0, 3],
            ..proto::Listener::default()
        }
    }

    fn refusal(change: impl FnOnce(&mut proto::Listener)) -> String {
        let mut message = message();
        change(&mut message);
        from_message(message, Path::new("/run/takt/admin.sock")).expect_err("refused")
    }

    #[test]
    fn zero_is_the_default_and_empty_is_nothing() {
        let config = from_message(message(), Path::new("/run/takt/admin.sock")).expect("good");
        assert_eq!(config.mode, 0o660);
        assert_eq!(
            config.policy,
            Policy {
                identity: "press".into(),
                write: vec![1..=9],
                read: Vec::new(),
                classes: 0b1001,
                ..Policy::default()
            }
        );
    }

    #[test]
    fn a_listener_survives_the_way_to_the_message_and_back() {
        let mut config = from_message(message(), Path::new("/x")).expect("good");
        config.mode = 0o600;
        config.policy.uids = vec![7];
        config.policy.memory = 64 << 20;
        config.policy.total_memory = 640 << 20;
        config.policy.total_endpoints = 77;
        config.policy.descriptors = 78;
        config.policy.lanes = vec![2, 3];
        let stream = |name: &str, flow| DeclaredStream {
            name: name.into(),
            flow,
            talker: takt_schedule::admission::Talker {
                priority: takt_time::TrafficClass::new(3).expect("a class"),
                period_ns: 1_000_000,
                offset_ns: 2,
                window_ns: 3,
                octets: 4,
                frames: 5,
            },
        };
        let destination = "10.244.1.9:4000".parse().expect("an address");
        config.policy.streams = vec![
            stream("axis", Flow::Channel(takt_session::ChannelId(7))),
            stream("press", Flow::Destination(destination)),
        ];
        config.policy.undeclared_streams = true;
        config.policy.trust = Trust::User;
        config.policy.endpoint = Some(takt_session::Endpoint {
            network: "pods".into(),
            mac: [2, 0, 0, 0, 0, 5],
            addresses: vec![([10, 244, 1, 5].into(), 24)],
            mtu: 1400,
            vlans: vec![0, 100],
        });
        let reading = takt_runtime::counters::StreamReading {
            passed: 1,
            refused_window: 2,
            refused_size: 3,
            refused_excess: 4,
        };
        let status = ListenerStatus {
            path: config.path.clone(),
            mode: config.mode,
            policy: config.policy.clone(),
            sessions: 2,
            memory: 4,
            endpoints: 5,
            descriptors: 6,
            refused: 3,
            counters: takt_runtime::counters::SessionReading {
                launched: 12,
                launched_late: 2,
                launches_missed: 1,
                ..Default::default()
            },
            unserved: std::array::from_fn(|at| u64::from(at == 4) * 7),
            streams: vec![Default::default(), reading],
            undeclared: 9,
        };
        let message = to_message(status);
        assert_eq!((message.sessions, message.refused), (2, 3));
        let counted = message.counters.expect("set");
        assert_eq!(
            (
                counted.launched,
                counted.launched_late,
                counted.launches_missed
            ),
            (12, 2, 1)
        );
        let second = &message.streams[1];
        assert_eq!(
            (second.name.as_str(), second.passed, second.refused_window),
            ("press", 1, 2)
        );
        assert_eq!(
            (
                second.refused_size,
                second.refused_excess,
                message.undeclared
            ),
            (3, 4, 9)
        );
        let [unserved] = &message.unserved[..] else {
            panic!("{:?}", message.unserved);
        };
        assert_eq!((unserved.reason.as_str(), unserved.count), ("no-route", 7));
        assert_eq!(
            (message.memory_bytes, message.endpoints, message.descriptors),
            (4, 5, 6)
        );
        let back = from_message(message.listener.expect("set"), Path::new("/x")).expect("good");
        assert_eq!(back, config);
    }

    #[test]
    fn a_fault_names_the_field_and_what_would_be_right() {
        assert!(refusal(|l| l.path = "a.sock".into()).contains("path"));
        assert!(refusal(|l| l.path = "/run/takt/admin.sock".into()).contains("admin socket"));
        assert!(refusal(|l| l.mode = 0o1777).contains("mode = 01777"));
        assert!(refusal(|l| l.identity = String::new()).contains("identity"));
        assert!(refusal(|l| l.classes = Vec::new()).contains("at least class 0"));
        assert!(refusal(|l| l.classes = vec![300]).contains("0 to 7"));
        assert!(refusal(|l| l.memory_bytes = 5).contains("24 MiB"));
        assert!(refusal(|l| l.write[0].first = 10).contains("write = 10-9"));
        assert!(refusal(|l| l.sessions = u32::MAX).contains("sessions"));
        let stream = proto::DeclaredStream {
            name: "axis".into(),
            traffic_class: 3,
            channel: Some(7),
            period_ns: 1_000_000,
            frame: 100,
            ..proto::DeclaredStream::default()
        };
        let wrong = |change: fn(&mut proto::DeclaredStream)| {
            let mut stream = stream.clone();
            change(&mut stream);
            refusal(|l| l.streams = vec![stream])
        };
        assert!(wrong(|s| s.channel = None).contains("stream[0].channel: write either"));
        assert!(wrong(|s| s.channel = Some(10)).contains("may `write`"));
        assert!(wrong(|s| s.destination = "x".into()).contains("stream `axis`: destination = x"));
        assert!(wrong(|s| s.traffic_class = 300).contains("stream[0].class"));
        assert!(wrong(|s| s.period_ns = 999).contains("1us to 60s"));
        assert!(wrong(|s| s.offset_ns = 1_000_000).contains("stream[0].offset"));
        assert!(wrong(|s| s.window_ns = 1_000_000).contains("stream[0].window"));
        assert!(wrong(|s| s.frames = u32::MAX).contains("stream[0].frames"));
        assert!(wrong(|s| s.frame = 0).contains("stream[0].frame"));
        let twice = vec![
            stream.clone(),
            proto::DeclaredStream {
                name: "other".into(),
                ..stream.clone()
            },
        ];
        assert!(refusal(|l| l.streams = twice).contains("of the same frames"));
        let endpoint = |mac: &str, address: &str| proto::Endpoint {
            network: "pods".into(),
            mac: mac.into(),
            addresses: vec![address.into()],
            mtu: 0,
            ethertypes: Vec::new(),
            vlans: Vec::new(),
        };
        let pause = proto::Endpoint {
            ethertypes: vec![0x8808],
            ..endpoint("02:00:00:00:00:01", "10.0.0.1/8")
        };
        assert!(refusal(|l| l.endpoint = Some(pause)).contains("0x8808"));
        for (id, told) in [(4095, "4095"), (1 << 16 | 100, "65636")] {
            let none = proto::Endpoint {
                vlans: vec![id],
                ..endpoint("02:00:00:00:00:01", "10.0.0.1/8")
            };
            let refused = refusal(|l| l.endpoint = Some(none));
            assert!(
                refused.contains("endpoint.vlans") && refused.contains(told),
                "{refused}"
            );
        }
        let group = endpoint("01:00:00:00:00:01", "10.0.0.1/8");
        assert!(refusal(|l| l.endpoint = Some(group)).contains("endpoint.mac"));
        let bare = endpoint("02:00:00:00:00:01", "10.0.0.1");
        assert!(refusal(|l| l.endpoint = Some(bare)).contains("endpoint.addresses = 10.0.0.1"));
    }
}
