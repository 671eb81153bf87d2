//! What would run with a configuration, for people: what `--check` prints.

use std::fmt::Write;
use std::path::Path;

use bytesize::ByteSize;
use takt_runtime::config::{Balance, Idle, LaneConfig, ListenerConfig, SchedulingClass};
use takt_runtime::peering::keys::Protection;
use takt_runtime::policy::MappingPolicy;

use crate::config::value::Channels;
use crate::config::{Settings, classes_of};

/// The outline of a node. Nothing is opened or probed: a running daemon is not disturbed.
pub fn of(settings: &Settings) -> String {
    let mut text = String::new();
    // Writing into a string cannot fail.
    let _ = outline(settings, &mut text);
    text
}

fn outline(settings: &Settings, out: &mut String) -> std::fmt::Result {
    let config = &settings.runtime;
    writeln!(out, "node       {}", config.name)?;
    if config.port == 0 {
        writeln!(out, "peering    {}, any port", config.address)?;
    } else {
        writeln!(
            out,
            "peering    {}",
            std::net::SocketAddr::new(config.address, config.port)
        )?;
    }
    let protection = match config.security.protection {
        Protection::None => "NONE: peers are not authenticated",
        Protection::Integrity => "integrity",
        Protection::Encrypt => "encrypt",
    };
    writeln!(out, "security   {protection}")?;
    for net in &config.accept {
        writeln!(out, "accept     {}/{}", net.address, net.prefix)?;
    }
    if let Some(scout) = &config.scout {
        writeln!(
            out,
            "scout      nodes on {} that announce themselves",
            scout.interface
        )?;
        if !Path::new("/sys/class/net").join(&scout.interface).exists() {
            writeln!(
                out,
                "warning    there is no interface {} at the moment: without it the node does not start",
                scout.interface
            )?;
        }
    }
    if config.meeting.introduce {
        writeln!(out, "scout      introduces its peers to each other")?;
    }
    for address in &config.meeting.rendezvous {
        writeln!(out, "scout      nodes that {address} introduces")?;
    }
    for peer in &config.peers {
        let key = peer
            .key
            .map_or("the group's key".into(), |key| format!("key {key}"));
        match config.security.protection {
            Protection::None => writeln!(out, "peer       {}", peer.address)?,
            _ => writeln!(out, "peer       {}, {key}", peer.address)?,
        }
    }
    let (directory, plugins) = &settings.plugins;
    let datapaths = std::iter::once("udp")
        .chain(settings.xdp.as_ref().map(|_| "xdp"))
        .chain(plugins.iter().map(|(name, _)| name.as_str()));
    for (index, lane) in config.lanes.iter().enumerate() {
        let ports: Vec<String> = datapaths
            .clone()
            .enumerate()
            .filter(|(_, name)| config.lanes_of(name).contains(&index))
            .map(|(at, name)| match config.data_port(at, index) {
                0 => format!("{name} any port"),
                port => format!("{name} port {port}"),
            })
            .collect();
        writeln!(
            out,
            "lane {index}     {}; {}",
            match ports.is_empty() {
                true => "no datapath".to_owned(),
                false => ports.join(", "),
            },
            of_lane(lane)
        )?;
    }
    for (class, lanes) in &config.class_lanes {
        writeln!(out, "class {class}    on lanes {}", numbers(lanes))?;
    }
    if config.lanes.len() > 1 {
        let Balance {
            high_percent: high,
            low_percent: low,
            hold,
            ..
        } = config.balance;
        match config.balance.lanes {
            true => writeln!(
                out,
                "balance    sessions leave lanes that are at work for {high} % of the time, until {low} %; once in {} s",
                hold.as_secs()
            )?,
            false => writeln!(out, "balance    no session leaves its lane by itself")?,
        }
    }
    if let Some(xdp) = &settings.xdp {
        write!(
            out,
            "datapath   xdp on {}: mode {:?}, zero copy {:?}",
            xdp.interface, xdp.mode, xdp.zero_copy
        )?;
        match &xdp.queues {
            Some(queues) => writeln!(out, ", queues {}-{}", queues.start, queues.end - 1)?,
            None => writeln!(out, ", all queues")?,
        }
        if !Path::new("/sys/class/net").join(&xdp.interface).exists() {
            writeln!(
                out,
                "warning    there is no interface {} at the moment: without it fast streams use kernel UDP",
                xdp.interface
            )?;
        }
    }
    for (name, _) in plugins {
        let file = directory.join(takt_datapath::plugin::file_name(name));
        writeln!(out, "datapath   {name} by the plugin {}", file.display())?;
        if !file.exists() {
            writeln!(
                out,
                "warning    there is no {} at the moment: without it streams take another datapath",
                file.display()
            )?;
        }
    }
    of_mapping(&config.mapping, &datapaths.collect::<Vec<_>>(), out)?;
    for core in config.lanes.iter().filter_map(|lane| lane.core) {
        if !Path::new(&format!("/sys/devices/system/cpu/cpu{core}")).exists() {
            writeln!(
                out,
                "warning    this machine has no core {core}: the lane would run on any; `lscpu -e` shows those that there are"
            )?;
        }
    }
    for listener in &config.listeners {
        of_listener(listener, out)?;
    }
    if config.listeners.is_empty() {
        writeln!(
            out,
            "warning    no listener: applications cannot attach until one is set by the admin API"
        )?;
    }
    let (socket, mode) = &settings.admin;
    writeln!(out, "admin      {} mode {mode:04o}", socket.display())?;
    match settings.metrics {
        Some(address) => writeln!(out, "metrics    http://{address}/metrics")?,
        None => writeln!(out, "metrics    none")?,
    }
    writeln!(out, "log        {}", settings.file.log.level)
}

/// Which datapaths streams get, where the configuration says more than is usual.
fn of_mapping(mapping: &MappingPolicy, known: &[&str], out: &mut String) -> std::fmt::Result {
    let usual = MappingPolicy::default();
    for (use_of_cores, list, usual) in [
        ("frugal", &mapping.fast_frugal, &usual.fast_frugal),
        ("unlimited", &mapping.fast_unlimited, &usual.fast_unlimited),
    ] {
        if list != usual {
            // Tried last in any case.
            let last = Some("udp").filter(|udp| !list.iter().any(|name| name == udp));
            let tried: Vec<&str> = list.iter().map(String::as_str).chain(last).collect();
            let tried = tried.join(", ");
            writeln!(out, "mapping    fast {use_of_cores}: {tried}")?;
        }
    }
    for rule in &mapping.rules {
        let tenants = match rule.tenants.is_empty() {
            true => "all tenants".to_owned(),
            false => format!("tenants {}", rule.tenants.join(",")),
        };
        let classes = match rule.classes {
            0 => "all classes".to_owned(),
            some => format!("classes {}", numbers(classes_of(some))),
        };
        writeln!(
            out,
            "mapping    rule {}: {tenants}, {classes}: {}",
            rule.name,
            rule.datapaths.join(", ")
        )?;
        let there = |name: &String| known.contains(&name.as_str());
        if !rule.datapaths.iter().any(there) {
            writeln!(
                out,
                "warning    none of these is on this node: the streams of rule {} get kernel UDP; configure one by `[datapath.NAME]`",
                rule.name
            )?;
        }
    }
    Ok(())
}

fn of_lane(lane: &LaneConfig) -> String {
    let mut text = match lane.idle {
        Idle::Spin => "spin".to_owned(),
        Idle::Park => "park".to_owned(),
        Idle::Adaptive { spin } => format!("adaptive, spins {} us", spin.as_micros()),
    };
    if let Some(core) = lane.core {
        text.push_str(&format!(", core {core}"));
    }
    if let SchedulingClass::Fifo(priority) = lane.scheduling {
        text.push_str(&format!(", SCHED_FIFO {priority}"));
    }
    text
}

fn of_listener(listener: &ListenerConfig, out: &mut String) -> std::fmt::Result {
    let policy = &listener.policy;
    let channels = |ranges: &[std::ops::RangeInclusive<u64>]| {
        let texts: Vec<String> = ranges
            .iter()
            .map(|range| Channels(range.clone()).to_string())
            .collect();
        if texts.is_empty() {
            "none".to_owned()
        } else {
            texts.join(",")
        }
    };
    let rate = |value: u64, text: String| {
        if value == 0 {
            "unlimited".to_owned()
        } else {
            text
        }
    };
    write!(
        out,
        "listener   {} mode {:04o}\n           tenant {}, write {}, read {}, classes {}\n           {} messages/s, {} bytes/s, memory {} of {} in all\n           {} sessions of {} endpoints, {} in all, with {} descriptors",
        listener.path.display(),
        listener.mode,
        policy.identity,
        channels(&policy.write),
        channels(&policy.read),
        numbers(classes_of(policy.classes)),
        rate(
            policy.messages_per_second,
            policy.messages_per_second.to_string()
        ),
        rate(policy.bytes_per_second, policy.bytes_per_second.to_string()),
        ByteSize(policy.memory as u64),
        ByteSize(policy.total_memory as u64),
        policy.sessions,
        policy.endpoints,
        policy.total_endpoints,
        policy.descriptors,
    )?;
    if policy.lanes.is_empty() {
        return writeln!(out);
    }
    writeln!(out, ", on lanes {}", numbers(&policy.lanes))
}

fn numbers(list: impl IntoIterator<Item = impl ToString>) -> String {
    let list: Vec<String> = list.into_iter().map(|number| number.to_string()).collect();
    list.join(",")
}
