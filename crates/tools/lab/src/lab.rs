//! Making, finding and removing labs.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::config::{ENCAPSULATION, LabConfig, Overlay};
use crate::host::{Host, INTERFACE, switch_of};
use crate::iproute::{bridge, ip, tc};
use crate::record::{self, Owner, Record};
use crate::{LabError, namespace};

/// The longest name: with it a namespace's name stays readable, and far below the 255 of a file.
const LONGEST_NAME: usize = 32;
/// The network identifier of the containers' VXLAN.
pub const OVERLAY_ID: u32 = 42;
/// The device of the containers' VXLAN on each host.
pub const OVERLAY_DEVICE: &str = "vxlan42";
/// How long a queue of the switch is, in time at its rate.
const QUEUE_MS: u64 = 10;
/// The bridge that the containers of a host are plugged into.
const OVERLAY_BRIDGE: &str = "cni0";

/// How a host's kernel queues what it sends on its cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queues {
    /// One queue for all.
    One,
    /// Two, as the switch has them with [`LabConfig::priorities`].
    ByPriority,
    /// Two with gates, which the kernel keeps itself; needs two [`LabConfig::queues`]. They hold nothing to the rate: taprio
    /// calls a queue below it in a way that only those without a rate understand.
    Gated(Gates),
}

/// Gates of the kernel's (taprio): a window for one priority, of which each packet leaves at its launch time (etf), and the rest
/// of each cycle for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gates {
    /// `SO_PRIORITY` of those packets, 0 to 15. One without a launch time of `CLOCK_TAI` is lost.
    pub priority: u8,
    /// Their window, from the beginning of each cycle on.
    pub window: Duration,
    /// From one window to the next; cycles are counted from the beginning of `CLOCK_TAI`.
    pub cycle: Duration,
    /// How far ahead of its launch time a packet leaves, 2 s at most: the device is to hold it. What is late is lost.
    pub ahead: Duration,
}

/// Some hosts in network namespaces, joined by a cable or a bridge.
///
/// A lab from [`Lab::up`] stays until [`Lab::down`], across processes. One from [`Lab::scratch`]
/// goes when it is dropped.
#[derive(Debug)]
pub struct Lab {
    name: String,
    config: LabConfig,
    hosts: Vec<Host>,
    /// Of each host.
    containers: Vec<Vec<Host>>,
    scratch: bool,
}

impl Lab {
    /// Makes a lab that stays until it is taken [`down`](Self::down).
    ///
    /// # Errors
    /// When the name or configuration cannot be used, something of that name exists, or iproute2
    /// refuses; whatever had been made by then is removed again.
    pub fn up(name: &str, config: &LabConfig) -> Result<Self, LabError> {
        Self::create(name, config, None)
    }

    /// Makes a lab with a name of its own that is removed when the value is dropped, also by a panic.
    ///
    /// One that outlived its process (killed by a signal) is removed by the next call, whoever makes it.
    ///
    /// # Errors
    /// As [`Lab::up`].
    pub fn scratch(config: &LabConfig) -> Result<Self, LabError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_orphans();
        // Relaxed: only the numbers have to differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("takt-t-{}-{number}", std::process::id());
        let mut lab = Self::create(&name, config, Some(Owner::this_process()?))?;
        lab.scratch = true;
        Ok(lab)
    }

    /// The lab `name`, made earlier or by another process.
    ///
    /// # Errors
    /// [`LabError::NotFound`], or the record cannot be read.
    pub fn find(name: &str) -> Result<Self, LabError> {
        validate_name(name)?;
        match Record::read(name)? {
            Some(record) => Ok(Self::describe(name, record.config)),
            None => Err(LabError::NotFound {
                name: name.to_owned(),
            }),
        }
    }

    /// All labs that have a record, by name.
    ///
    /// # Errors
    /// When a record cannot be read; the message names it.
    pub fn list() -> Result<Vec<Self>, LabError> {
        let mut labs = Vec::new();
        for name in record::names()? {
            // One may go away between the two looks.
            if let Some(record) = Record::read(&name)? {
                labs.push(Self::describe(&name, record.config));
            }
        }
        Ok(labs)
    }

    /// Removes the lab `name`, or what is left of it. Processes inside keep running, without a link.
    ///
    /// # Errors
    /// [`LabError::NotFound`] when there is nothing of that name, or the first thing that could not
    /// be removed; the rest is removed all the same.
    pub fn down(name: &str) -> Result<(), LabError> {
        validate_name(name)?;
        let namespaces = namespaces_of(name)?;
        let removed = namespaces
            .iter()
            .map(|namespace| remove_namespace(namespace))
            .fold(Ok(()), Result::and);
        // The record goes last, and only when nothing else is left: it is how leftovers are found.
        removed?;
        let recorded = record::remove(name)?;
        if namespaces.is_empty() && !recorded {
            return Err(LabError::NotFound {
                name: name.to_owned(),
            });
        }
        Ok(())
    }

    /// The lab's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How it was configured.
    pub fn config(&self) -> &LabConfig {
        &self.config
    }

    /// Host `index`, counted from 0: `host(0)` is `h1`.
    ///
    /// # Panics
    /// When the lab has no such host.
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// All hosts.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Container `index` of host `host`, both counted from 0: `container(0, 0)` is `h1c1`.
    ///
    /// # Panics
    /// When the lab has no such container.
    pub fn container(&self, host: usize, index: usize) -> &Host {
        &self.containers[host][index]
    }

    /// All hosts and their containers.
    pub fn all(&self) -> impl Iterator<Item = &Host> {
        self.hosts.iter().chain(self.containers.iter().flatten())
    }

    fn describe(name: &str, config: LabConfig) -> Self {
        let hosts = (0..config.hosts)
            .map(|index| Host::new(name, index, &config))
            .collect();
        let of_host = |host| {
            let containers = 0..config.containers;
            containers
                .map(|index| Host::container(name, host, index, &config))
                .collect()
        };
        Self {
            name: name.to_owned(),
            hosts,
            containers: (0..config.hosts).map(of_host).collect(),
            config: config.clone(),
            scratch: false,
        }
    }

    fn create(name: &str, config: &LabConfig, owner: Option<Owner>) -> Result<Self, LabError> {
        validate_name(name)?;
        config.validate()?;
        let exists = |what: String| LabError::Exists {
            name: name.to_owned(),
            what,
        };
        if let Some(namespace) = namespaces_of(name)?.into_iter().next() {
            return Err(exists(format!("the namespace {namespace}")));
        }
        if !(Record {
            config: config.clone(),
            owner,
        })
        .publish(name)?
        {
            return Err(exists(format!(
                "the record {}/{name}.json",
                record::RECORDS
            )));
        }
        let lab = Self::describe(name, config.clone());
        lab.build().inspect_err(|_| {
            // The first error is the one to tell; what a failed removal leaves is found by its record.
            let _ = Self::down(name);
        })?;
        Ok(lab)
    }

    fn build(&self) -> Result<(), LabError> {
        for host in &self.hosts {
            add_namespace(host.namespace())?;
        }
        if self.config.bridged() {
            self.build_switch()?;
        } else {
            self.build_cable(End::of(&self.hosts[0]), End::of(&self.hosts[1]))?;
        }
        self.hosts.iter().try_for_each(add_address)?;
        for host in &self.hosts {
            host.wait_for_link()?;
        }
        if self.config.containers > 0 {
            for (index, (host, containers)) in self.hosts.iter().zip(&self.containers).enumerate() {
                match self.config.overlay {
                    Overlay::Bridged => self.build_overlay(host)?,
                    Overlay::Flannel | Overlay::HostGateway => self.build_routed(index, host)?,
                }
                for container in containers {
                    Self::build_container(container)?;
                    if self.config.overlay.routed() {
                        let gateway = gateway(index).to_string();
                        let purpose = format!("give {} its gateway", container.namespace());
                        let route = ["route", "add", "default", "via", &gateway];
                        ip(
                            &purpose,
                            &[&["-n", container.namespace()], &route[..]].concat(),
                        )?;
                    }
                }
            }
            for container in self.containers.iter().flatten() {
                container.wait_for_link()?;
            }
        }
        Ok(())
    }

    /// A bridge for the containers of a host, and the VXLAN that joins it with those of the others.
    fn build_overlay(&self, host: &Host) -> Result<(), LabError> {
        let purpose = format!("build the VXLAN of {}", host.namespace());
        let run = |arguments: &[&str]| {
            ip(&purpose, &[&["-n", host.namespace()], arguments].concat()).map(drop)
        };
        let (id, address) = (OVERLAY_ID.to_string(), host.address().to_string());
        let mtu = (self.config.mtu - ENCAPSULATION).to_string();
        run(&[
            "link",
            "add",
            OVERLAY_BRIDGE,
            "mtu",
            &mtu,
            "type",
            "bridge",
            "stp_state",
            "0",
            "forward_delay",
            "0",
        ])?;
        run(&[
            "link",
            "add",
            OVERLAY_DEVICE,
            "mtu",
            &mtu,
            "type",
            "vxlan",
            "id",
            &id,
            "dstport",
            "4789",
            "local",
            &address,
            "dev",
            INTERFACE,
        ])?;
        run(&["link", "set", OVERLAY_DEVICE, "master", OVERLAY_BRIDGE])?;
        run(&["link", "set", OVERLAY_DEVICE, "up"])?;
        run(&["link", "set", OVERLAY_BRIDGE, "up"])?;
        for other in self.hosts.iter().filter(|other| *other != host) {
            let other = other.address().to_string();
            bridge(
                &purpose,
                &[
                    "-n",
                    host.namespace(),
                    "fdb",
                    "append",
                    "00:00:00:00:00:00",
                    "dev",
                    OVERLAY_DEVICE,
                    "dst",
                    &other,
                ],
            )?;
        }
        Ok(())
    }

    /// A bridge with a gateway for the containers of a host, and the routes to those of the others.
    fn build_routed(&self, index: usize, host: &Host) -> Result<(), LabError> {
        let purpose = format!("build the routed network of {}", host.namespace());
        let namespace = host.namespace();
        let run =
            |arguments: &[&str]| ip(&purpose, &[&["-n", namespace], arguments].concat()).map(drop);
        let command = |text: &str| run(&text.split_whitespace().collect::<Vec<_>>());
        let tunnelled = self.config.overlay == Overlay::Flannel;
        let mtu = self.config.mtu - if tunnelled { ENCAPSULATION } else { 0 };
        command(&format!(
            "link add {OVERLAY_BRIDGE} mtu {mtu} type bridge stp_state 0 forward_delay 0"
        ))?;
        command(&format!(
            "address add {}/24 dev {OVERLAY_BRIDGE}",
            gateway(index)
        ))?;
        command(&format!("link set {OVERLAY_BRIDGE} up"))?;
        forward_packets(host)?;
        if tunnelled {
            command(&format!(
                "link add {OVERLAY_DEVICE} address {} mtu {mtu} type vxlan id {OVERLAY_ID} dstport 4789 \
                 local {} dev {INTERFACE} nolearning",
                format_mac(tunnel_mac(index)),
                host.address()
            ))?;
            command(&format!(
                "address add {}/32 dev {OVERLAY_DEVICE}",
                subnet(index)
            ))?;
            command(&format!("link set {OVERLAY_DEVICE} up"))?;
        }
        let others = self.hosts.iter().enumerate();
        for (other, far) in others.filter(|(other, _)| *other != index) {
            let (subnet, mac) = (subnet(other), format_mac(tunnel_mac(other)));
            if !tunnelled {
                command(&format!("route add {subnet}/24 via {}", far.address()))?;
                continue;
            }
            command(&format!(
                "route add {subnet}/24 via {subnet} dev {OVERLAY_DEVICE} onlink"
            ))?;
            command(&format!(
                "neighbour add {subnet} lladdr {mac} dev {OVERLAY_DEVICE} nud permanent"
            ))?;
            let far = far.address().to_string();
            let entry = ["fdb", "append", &mac, "dev", OVERLAY_DEVICE, "dst", &far];
            bridge(&purpose, &[&["-n", namespace], &entry[..]].concat())?;
        }
        Ok(())
    }

    fn build_container(container: &Host) -> Result<(), LabError> {
        add_namespace(container.namespace())?;
        let (host, port) = container.far();
        let purpose = format!("plug {} into its bridge", container.namespace());
        let mtu = container.mtu().to_string();
        let mac = format_mac(container.mac());
        ip(
            &purpose,
            &[
                "link",
                "add",
                INTERFACE,
                "netns",
                container.namespace(),
                "address",
                &mac,
                "mtu",
                &mtu,
                "type",
                "veth",
                "peer",
                "name",
                port,
                "netns",
                host,
                "mtu",
                &mtu,
            ],
        )?;
        ip(
            &purpose,
            &["-n", host, "link", "set", port, "master", OVERLAY_BRIDGE],
        )?;
        ip(&purpose, &["-n", host, "link", "set", port, "up"])?;
        ip(
            &purpose,
            &["-n", container.namespace(), "link", "set", INTERFACE, "up"],
        )?;
        add_address(container)
    }

    fn build_switch(&self) -> Result<(), LabError> {
        let switch = switch_of(&self.name);
        add_namespace(&switch)?;
        let purpose = format!("create the bridge of {switch}");
        let bridge = [
            "-n",
            &switch,
            "link",
            "add",
            "br0",
            "mtu",
            &self.config.mtu.to_string(),
            "type",
            "bridge",
        ];
        ip(
            &purpose,
            &[&bridge[..], &["stp_state", "0", "forward_delay", "0"]].concat(),
        )?;
        ip(&purpose, &["-n", &switch, "link", "set", "br0", "up"])?;
        for host in &self.hosts {
            let port = End {
                namespace: &switch,
                interface: host.name(),
                mac: None,
            };
            self.build_cable(End::of(host), port)?;
            let purpose = format!("plug {} into the bridge of {switch}", host.namespace());
            ip(
                &purpose,
                &[
                    "-n",
                    &switch,
                    "link",
                    "set",
                    port.interface,
                    "master",
                    "br0",
                ],
            )?;
            if let Some(loss) = self.config.loss_ppm {
                lose(End::of(host), port, loss)?;
            }
        }
        Ok(())
    }

    /// How many packets the switch has lost of those that came in from a host; with [`LabConfig::loss_ppm`] alone.
    ///
    /// # Errors
    /// When the lab is down.
    pub fn lost(&self, host: usize) -> Result<u64, LabError> {
        #[derive(serde::Deserialize)]
        struct Queueing {
            kind: String,
            drops: u64,
        }
        let (switch, port) = (switch_of(&self.name), self.hosts[host].name());
        let purpose = format!("count what {switch} has lost");
        let arguments = ["-n", &switch, "-s", "-json", "qdisc", "show", "dev", port];
        let told = tc(&purpose, &arguments)?;
        let all: Vec<Queueing> =
            serde_json::from_str(&told).map_err(|source| LabError::Description {
                interface: port.to_owned(),
                namespace: switch,
                source,
            })?;
        let ingress = all.iter().filter(|queueing| queueing.kind == "clsact");
        Ok(ingress.map(|queueing| queueing.drops).sum())
    }

    /// Gives a host's end of its cable other queues: what its kernel sends passes them. Nothing without a rate.
    ///
    /// # Errors
    /// When the lab is down, without CAP_NET_ADMIN, or when the kernel has no such queues.
    pub fn set_queues(&self, host: usize, queues: Queues) -> Result<(), LabError> {
        let Some(rate) = self.config.rate else {
            return Ok(());
        };
        let end = End::of(&self.hosts[host]);
        match queues {
            Queues::One => limit_rate(end, rate, self.config.mtu),
            Queues::ByPriority => queue_by_priority(end, rate),
            Queues::Gated(gates) => {
                // What has an etf already refuses another one.
                limit_rate(end, rate, self.config.mtu)?;
                keep_gates(end, &gates)
            }
        }
    }

    fn build_cable(&self, left: End<'_>, right: End<'_>) -> Result<(), LabError> {
        let purpose = format!("lay a cable from {} to {}", left.namespace, right.namespace);
        let (mtu, queues) = (self.config.mtu.to_string(), self.config.queues.to_string());
        let device = ["mtu", &mtu, "numrxqueues", &queues, "numtxqueues", &queues];
        let left_mac = left.mac.map(format_mac);
        let right_mac = right.mac.map(format_mac);
        let mut arguments = vec!["link", "add", left.interface, "netns", left.namespace];
        arguments.extend(left_mac.iter().flat_map(|mac| ["address", mac]));
        arguments.extend(device);
        arguments.extend([
            "type",
            "veth",
            "peer",
            "name",
            right.interface,
            "netns",
            right.namespace,
        ]);
        arguments.extend(right_mac.iter().flat_map(|mac| ["address", mac]));
        arguments.extend(device);
        ip(&purpose, &arguments)?;
        for end in [left, right] {
            match self.config.rate {
                Some(rate) if self.config.priorities && end.interface != INTERFACE => {
                    queue_by_priority(end, rate)?;
                }
                Some(rate) => limit_rate(end, rate, self.config.mtu)?,
                None => {}
            }
            ip(
                &purpose,
                &["-n", end.namespace, "link", "set", end.interface, "up"],
            )?;
        }
        Ok(())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if self.scratch
            && let Err(error) = Self::down(&self.name)
        {
            // A destructor can only tell; the next scratch lab will try again.
            eprintln!("takt-lab: cannot remove the lab {}: {error}", self.name);
        }
    }
}

/// The subnet of a host's containers, where each host has its own, and its gateway.
fn subnet(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, host as u8 + 1, 0)
}

fn gateway(host: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 88, host as u8 + 1, 1)
}

/// The hardware address of a host's VXLAN device, where each host has its own subnet.
fn tunnel_mac(host: usize) -> [u8; 6] {
    [0x02, 0x00, 10, 88, host as u8 + 1, 0]
}

/// Makes a host a router.
fn forward_packets(host: &Host) -> Result<(), LabError> {
    let _inside = host.enter()?;
    let purpose = format!("make {} a router", host.namespace());
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").map_err(LabError::io(purpose))
}

fn add_address(host: &Host) -> Result<(), LabError> {
    let network = format!("{}/{}", host.address(), host.prefix_length());
    let purpose = format!("give {} the address {network}", host.namespace());
    let namespace = host.namespace();
    ip(
        &purpose,
        &[
            "-n", namespace, "address", "add", &network, "dev", INTERFACE,
        ],
    )?;
    Ok(())
}

/// One end of a cable.
#[derive(Clone, Copy)]
struct End<'a> {
    namespace: &'a str,
    interface: &'a str,
    mac: Option<[u8; 6]>,
}

impl<'a> End<'a> {
    fn of(host: &'a Host) -> Self {
        Self {
            namespace: host.namespace(),
            interface: INTERFACE,
            mac: Some(host.mac()),
        }
    }
}

fn format_mac(mac: [u8; 6]) -> String {
    mac.map(|octet| format!("{octet:02x}")).join(":")
}

fn validate_name(name: &str) -> Result<(), LabError> {
    let bytes = name.as_bytes();
    let inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let usable = (1..=LONGEST_NAME).contains(&bytes.len())
        && bytes.iter().all(|byte| inner(byte) || *byte == b'-')
        && bytes.first().is_some_and(inner)
        && bytes.last().is_some_and(inner);
    if usable {
        Ok(())
    } else {
        Err(LabError::Name {
            name: name.to_owned(),
        })
    }
}

/// The namespaces that exist and are named as those of the lab `name`.
fn namespaces_of(name: &str) -> Result<Vec<String>, LabError> {
    let is_of_lab = |namespace: &String| {
        let rest = namespace
            .strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'));
        rest.is_some_and(|rest| {
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let host = rest.strip_prefix('h').is_some_and(|host| {
                let (host, container) = host.split_once('c').unwrap_or((host, "0"));
                is_number(host) && is_number(container)
            });
            host || rest == "switch"
        })
    };
    let mut namespaces: Vec<_> = namespace::names()?.into_iter().filter(is_of_lab).collect();
    namespaces.sort_unstable();
    Ok(namespaces)
}

fn add_namespace(namespace: &str) -> Result<(), LabError> {
    ip(
        &format!("create the namespace {namespace}"),
        &["netns", "add", namespace],
    )?;
    ip(
        &format!("bring up the loopback of {namespace}"),
        &["-n", namespace, "link", "set", "lo", "up"],
    )?;
    Ok(())
}

fn remove_namespace(namespace: &str) -> Result<(), LabError> {
    // A namespace lives on, nameless, while a process is in it: take its cable first. It may have
    // none, if the lab was being made.
    let _ = ip(
        "pull a cable",
        &["-n", namespace, "link", "delete", INTERFACE],
    );
    let removed = ip(
        &format!("remove the namespace {namespace}"),
        &["netns", "delete", namespace],
    );
    match removed {
        Err(error) if namespace::exists(namespace)? => Err(error),
        // Another process was faster.
        _ => Ok(()),
    }
}

/// Loses so many of a million packets that come in at a switch's `port` from a `host`.
fn lose(host: End<'_>, port: End<'_>, ppm: u32) -> Result<(), LabError> {
    let purpose = format!("lose packets at {} of {}", port.interface, port.namespace);
    let most = (u64::from(ppm) << 32) / 1_000_000;
    // Classic BPF (linux/filter.h): a random word beyond `most` is none of them (TC_ACT_UNSPEC), the others are shot
    // (TC_ACT_SHOT). No module is needed for it, unlike for netem.
    let program = format!("4,32 0 0 4294963256,53 1 0 {most},6 0 0 2,6 0 0 4294967295,");
    let at = ["-n", port.namespace];
    let device = ["dev", port.interface];
    tc(
        &purpose,
        &[&at[..], &["qdisc", "add"], &device, &["clsact"]].concat(),
    )?;
    let filter = ["ingress", "bpf", "direct-action", "bytecode", &program];
    tc(
        &purpose,
        &[&at[..], &["filter", "add"], &device, &filter].concat(),
    )?;
    let purpose = format!("have {} send single segments", host.namespace);
    let single = ["link", "set", host.interface, "gso_max_segs", "1"];
    ip(&purpose, &[&["-n", host.namespace], &single[..]].concat())?;
    Ok(())
}

/// Holds what leaves `end` to `rate` bit/s.
fn limit_rate(end: End<'_>, rate: u64, mtu: u32) -> Result<(), LabError> {
    // A millisecond's worth, so that a coarse timer does not cost rate, and never less than one frame.
    let burst = (rate / 8 / 1000)
        .max(2 * (u64::from(mtu) + 18))
        .min(u64::from(u32::MAX));
    let (rate_text, burst) = (format!("{rate}bit"), burst.to_string());
    let purpose = format!(
        "limit {} of {} to {rate} bit/s",
        end.interface, end.namespace
    );
    let place = [
        "-n",
        end.namespace,
        "qdisc",
        "replace",
        "dev",
        end.interface,
        "root",
    ];
    tc(
        &purpose,
        &[
            &place[..],
            &[
                "tbf", "rate", &rate_text, "burst", &burst, "latency", "50ms",
            ],
        ]
        .concat(),
    )?;
    Ok(())
}

/// Holds what leaves `end` to `rate` bit/s, with the upper half of all DSCP values first.
fn queue_by_priority(end: End<'_>, rate: u64) -> Result<(), LabError> {
    let purpose = format!("give {} of {} two queues", end.interface, end.namespace);
    let run =
        |arguments: &[&str]| tc(&purpose, &[&["-n", end.namespace], arguments].concat()).map(drop);
    let device = end.interface;
    let whole = format!("{rate}bit");
    let [express, rest] = [rate / 10, rate - rate / 10].map(|rate| format!("{rate}bit"));
    let limit = (rate / 8 / 1000 * QUEUE_MS).max(1 << 17).to_string();
    run(&[
        "qdisc", "replace", "dev", device, "root", "handle", "1:", "htb", "default", "20",
    ])?;
    run(&[
        "class", "add", "dev", device, "parent", "1:", "classid", "1:1", "htb", "rate", &whole,
    ])?;
    for (class, rate, priority) in [("1:10", &express, "0"), ("1:20", &rest, "1")] {
        run(&[
            "class", "add", "dev", device, "parent", "1:1", "classid", class, "htb", "rate", rate,
            "ceil", &whole, "prio", priority,
        ])?;
        run(&[
            "qdisc", "add", "dev", device, "parent", class, "bfifo", "limit", &limit,
        ])?;
    }
    run(&[
        "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "u32", "match", "ip",
        "dsfield", "0x80", "0x80", "flowid", "1:10",
    ])
}

/// Gives `end` gates.
fn keep_gates(end: End<'_>, gates: &Gates) -> Result<(), LabError> {
    let purpose = format!("give {} of {} gates", end.interface, end.namespace);
    let [taprio, etf] = gate_commands(end.interface, gates);
    // Linux 6.1 stops the gates when a queue below them becomes another one: they are started again.
    for command in [&taprio, &etf, &taprio] {
        let words: Vec<&str> = ["-n", end.namespace]
            .into_iter()
            .chain(command.split_whitespace())
            .collect();
        tc(&purpose, &words)?;
    }
    Ok(())
}

/// What `tc` is told: of the gates, and of launch times behind that of the priority.
fn gate_commands(device: &str, gates: &Gates) -> [String; 2] {
    let classes: Vec<&str> = (0..16)
        .map(|priority| match priority == gates.priority {
            true => "1",
            false => "0",
        })
        .collect();
    let window = gates.window.as_nanos();
    [
        format!(
            "qdisc replace dev {device} root handle 100: taprio num_tc 2 map {} queues 1@0 1@1 base-time 0 \
             sched-entry S 2 {window} sched-entry S 1 {} clockid CLOCK_TAI",
            classes.join(" "),
            gates.cycle.as_nanos() - window,
        ),
        format!(
            "qdisc replace dev {device} parent 100:2 etf clockid CLOCK_TAI delta {}",
            gates.ahead.as_nanos()
        ),
    ]
}

/// Removes scratch labs whose process is gone. Failing is no reason not to make another lab.
fn remove_orphans() {
    for name in record::names().unwrap_or_default() {
        if let Ok(Some(Record {
            owner: Some(owner), ..
        })) = Record::read(&name)
            && !owner.is_alive()
        {
            let _ = Lab::down(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_for_one_priority_and_for_all_others() {
        let [taprio, etf] = gate_commands(
            "eth0",
            &Gates {
                priority: 6,
                window: Duration::from_micros(250),
                cycle: Duration::from_millis(1),
                ahead: Duration::from_secs(1),
            },
        );
        assert_eq!(
            taprio,
            "qdisc replace dev eth0 root handle 100: taprio num_tc 2 map 0 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 \
             queues 1@0 1@1 base-time 0 sched-entry S 2 250000 sched-entry S 1 750000 clockid CLOCK_TAI"
        );
        assert_eq!(
            etf,
            "qdisc replace dev eth0 parent 100:2 etf clockid CLOCK_TAI delta 1000000000"
        );
    }

    #[test]
    fn a_name_that_could_escape_a_path_or_confuse_a_command_is_refused() {
        let long = "x".repeat(LONGEST_NAME + 1);
        for name in [
            "", "-a", "a-", "../etc", "a/b", "a b", "A", "a.b", "ä", "a\n", &long,
        ] {
            assert!(
                matches!(validate_name(name), Err(LabError::Name { .. })),
                "{name:?}"
            );
        }
        for name in ["a", "0", "demo", "a-1", &long[1..]] {
            validate_name(name).unwrap();
        }
    }
}
