//! What the applications behind a listening socket may do, and how streams map to datapaths.

use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use takt_datapath::{Capabilities, DatapathKind};
use takt_session::{
    Acceleration, ChannelId, DatapathName, Endpoint, ErrorCode, Failure, Qos, ResourceUse,
    TimeSensitivity,
};

use crate::policing::DeclaredStream;

/// Which sessions of a listener exchange messages without a lane, in memory of each other's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// None.
    #[default]
    Nobody,
    /// Those of one user.
    User,
}

/// The rights of every session that arrives on one listening socket. Identity is the socket, never
/// what an application says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The tenant: a name for people, logs and metrics.
    pub identity: String,
    /// User ids that may connect; empty: whoever the socket's file mode lets in.
    pub uids: Vec<u32>,
    /// Channels it may write.
    pub write: Vec<RangeInclusive<u64>>,
    /// Channels it may read.
    pub read: Vec<RangeInclusive<u64>>,
    /// Traffic classes it may use, a bit each.
    pub classes: u8,
    /// Most messages per second of all its sessions together; 0 = unlimited.
    pub messages_per_second: u64,
    /// Most payload bytes per second of all its sessions together; 0 = unlimited.
    pub bytes_per_second: u64,
    /// Most bytes of a session's arena.
    pub memory: usize,
    /// Most bytes of the arenas of all its sessions together.
    pub total_memory: usize,
    /// Most sessions at a time.
    pub sessions: usize,
    /// Most sources, and as many sinks, of a session. See [`channel_sinks`](Self::channel_sinks).
    pub endpoints: usize,
    /// Most sources and sinks of all its sessions together.
    pub total_endpoints: usize,
    /// Most descriptors of the runtime's process that its sessions need together: four each, and two for each
    /// sink with a descriptor to wait on.
    pub descriptors: usize,
    /// Numbers of the lanes that may serve its sessions; empty: all of them.
    pub lanes: Vec<usize>,
    /// Its place in a network, from which it may send frames.
    pub endpoint: Option<Endpoint>,
    /// EtherTypes of frames that it may send from there besides IP. Those that control a link never leave.
    pub ether_types: Vec<u16>,
    /// Its streams. In their classes it sends nothing else.
    pub streams: Vec<DeclaredStream>,
    /// But for this: it may send other frames there too, of which nothing is known beforehand.
    pub undeclared_streams: bool,
    /// Which of its sessions are a trust domain. Not beside a rate, which lanes keep.
    pub trust: Trust,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            identity: "default".into(),
            uids: Vec::new(),
            write: vec![0..=u64::MAX],
            read: vec![0..=u64::MAX],
            classes: 0xff,
            messages_per_second: 0,
            bytes_per_second: 0,
            memory: 256 << 20,
            total_memory: half_of_memory(),
            sessions: 256,
            endpoints: 256,
            total_endpoints: 4096,
            descriptors: 2048,
            lanes: Vec::new(),
            endpoint: None,
            ether_types: Vec::new(),
            streams: Vec::new(),
            undeclared_streams: false,
            trust: Trust::Nobody,
        }
    }
}

/// Half of what this process may use of the machine's memory: the bound of its cgroups, or all there is. Read
/// once.
pub fn half_of_memory() -> usize {
    static HALF: OnceLock<usize> = OnceLock::new();
    *HALF.get_or_init(|| usable_memory() / 2)
}

/// What all tenants of a runtime may hold together: the rest is for the node itself.
pub fn most_of_memory() -> usize {
    half_of_memory() / 2 * 3
}

fn usable_memory() -> usize {
    let machine = rustix::system::sysinfo();
    let there = (machine.totalram as usize).saturating_mul((machine.mem_unit as usize).max(1));
    // Its own cgroup as a container sees it, or as the host does: the tightest bound on the way up holds.
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::"));
    let root = Path::new("/sys/fs/cgroup");
    let place = root.join(own.unwrap_or("/").trim_start_matches('/'));
    place
        .ancestors()
        .take_while(|directory| directory.starts_with(root))
        .filter_map(|directory| std::fs::read_to_string(directory.join("memory.max")).ok())
        // "max": no bound there.
        .filter_map(|text| text.trim().parse().ok())
        .fold(there, usize::min)
}

/// Sinks of one channel that a tenant may have, at least.
const CHANNEL_SINKS: usize = 256;

impl Policy {
    /// It without streams of the names of another's.
    pub(crate) fn without_streams_of(&self, other: &Self) -> Self {
        let mut without = self.clone();
        let moved = |name: &str| other.streams.iter().any(|stream| stream.name == name);
        without.streams.retain(|stream| !moved(&stream.name));
        without
    }

    /// Most sinks of one channel of all its sessions together: as many as one session may have of all, or 256 if those are
    /// more. A lane copies a message that it receives to all of them in one go.
    pub fn channel_sinks(&self) -> usize {
        self.endpoints.max(CHANNEL_SINKS)
    }

    fn allows(ranges: &[RangeInclusive<u64>], channel: ChannelId) -> bool {
        ranges.iter().any(|range| range.contains(&channel.0))
    }

    /// Checks a source.
    ///
    /// # Errors
    /// `NotPermitted`, naming channel and tenant.
    pub fn check_write(&self, channel: ChannelId) -> Result<(), Failure> {
        if Self::allows(&self.write, channel) {
            return Ok(());
        }
        Err(self.refusal(channel, "write"))
    }

    /// Checks a sink.
    ///
    /// # Errors
    /// `NotPermitted`, naming channel and tenant.
    pub fn check_read(&self, channel: ChannelId) -> Result<(), Failure> {
        if Self::allows(&self.read, channel) {
            return Ok(());
        }
        Err(self.refusal(channel, "read"))
    }

    /// The endpoint that frames are sent from.
    ///
    /// # Errors
    /// `NotPermitted`, naming the tenant.
    pub fn check_endpoint(&self) -> Result<&Endpoint, Failure> {
        self.endpoint.as_ref().ok_or_else(|| {
            Failure::new(
                ErrorCode::NotPermitted,
                format!(
                    "tenant `{}` has no endpoint in any network: ask the operator to give its listener one",
                    self.identity
                ),
            )
        })
    }

    /// Checks a stream's class.
    ///
    /// # Errors
    /// `NotPermitted`, naming class and tenant.
    pub fn check_class(&self, qos: Qos) -> Result<(), Failure> {
        let class = qos.time_sensitivity.class();
        if self.classes & (1 << class.number()) != 0 {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::NotPermitted,
            format!(
                "tenant `{}` may not use traffic class {class}: allowed are {:?}; ask the operator to extend `classes`",
                self.identity,
                (0..8)
                    .filter(|c| self.classes & (1 << c) != 0)
                    .collect::<Vec<_>>(),
            ),
        ))
    }

    fn refusal(&self, channel: ChannelId, verb: &str) -> Failure {
        Failure::new(
            ErrorCode::NotPermitted,
            format!(
                "tenant `{}` may not {verb} channel {channel}: ask the operator to extend `{verb}` of its listener",
                self.identity
            ),
        )
    }
}

/// Which datapaths to try for a stream, best first. Kernel UDP is tried after them in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappingPolicy {
    /// Rules, of which the first that fits a stream holds; the lists below are for those that none fits.
    pub rules: Vec<MappingRule>,
    /// How long a datapath that has failed must work again before streams return to it.
    pub hold_down: Duration,
    /// `acceleration = fast`, `resource use = frugal`.
    pub fast_frugal: Vec<String>,
    /// `acceleration = fast`, `resource use = unlimited`.
    pub fast_unlimited: Vec<String>,
}

impl Default for MappingPolicy {
    /// The strategy of section 6.3.2: RDMA where it is, else DPDK if cores may be spent, else XDP.
    fn default() -> Self {
        let names = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect();
        Self {
            rules: Vec::new(),
            hold_down: Duration::from_secs(3),
            fast_frugal: names(&["fabric", "xdp"]),
            fast_unlimited: names(&["fabric", "dpdk", "xdp"]),
        }
    }
}

/// Which datapaths the streams of some tenants and classes get, whatever acceleration they ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingRule {
    /// Its name, for people.
    pub name: String,
    /// Tenants, by their names; empty: all.
    pub tenants: Vec<String>,
    /// Traffic classes, a bit each; none: all.
    pub classes: u8,
    /// Datapaths to try, best first.
    pub datapaths: Vec<String>,
}

impl MappingRule {
    fn fits(&self, tenant: &str, qos: Qos) -> bool {
        let class = qos.time_sensitivity.class().number();
        (self.tenants.is_empty() || self.tenants.iter().any(|name| name == tenant))
            && (self.classes == 0 || self.classes & (1 << class) != 0)
    }
}

/// The outcome of mapping a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Index into the lane's datapaths.
    pub datapath: usize,
    /// Why it is less than asked for; empty if it is not.
    pub warning: String,
    /// The rule that has chosen it; empty if none has.
    pub rule: String,
}

impl MappingPolicy {
    /// Chooses for a tenant's stream among the datapaths that a lane has, with what each can do. `unavailable` tells why
    /// a configured one is missing, `scheduled` whether a datapath's link has a schedule. The last resort is kernel UDP,
    /// or the first one where it is missing.
    ///
    /// # Errors
    /// `NotAvailable` where the stream names a datapath that it cannot have, or nothing is available.
    pub fn map(
        &self,
        tenant: &str,
        qos: Qos,
        available: &[(DatapathKind, Capabilities)],
        unavailable: &[(String, String)],
        scheduled: impl Fn(DatapathKind) -> bool,
    ) -> Result<Mapping, Failure> {
        let warning_of_class = |at: usize| match qos.time_sensitivity {
            TimeSensitivity::TimeSensitive(class) if !scheduled(available[at].0) => {
                format!(
                    "messages are marked with traffic class {class}, but no schedule is installed: they leave as soon as emitted"
                )
            }
            _ => String::new(),
        };
        if let Some(name) = qos.datapath {
            let at = named(name, qos, available, unavailable)?;
            return Ok(Mapping {
                datapath: at,
                warning: warning_of_class(at),
                rule: String::new(),
            });
        }
        let udp = available.iter().position(|(kind, _)| kind.0 == "udp");
        let udp = udp.unwrap_or(0);
        let used = match available.get(udp) {
            Some((DatapathKind("udp"), _)) => "kernel UDP",
            Some((DatapathKind(other), _)) => other,
            None => return Err(nothing(unavailable)),
        };
        let rule = self.rules.iter().find(|rule| rule.fits(tenant, qos));
        let name = rule.map_or_else(String::new, |rule| rule.name.clone());
        if rule.is_none() && qos.acceleration == Acceleration::Slow {
            let why = unavailable.iter().find(|(name, _)| name == "udp");
            return Ok(Mapping {
                datapath: udp,
                warning: match why {
                    Some((_, why)) => format!("no kernel UDP here, using {used} ({why})"),
                    None => warning_of_class(udp),
                },
                rule: name,
            });
        }
        let order = match (rule, qos.resource_use) {
            (Some(rule), _) => &rule.datapaths,
            (None, ResourceUse::Frugal) => &self.fast_frugal,
            (None, ResourceUse::Unlimited) => &self.fast_unlimited,
        };
        let mut reasons = Vec::new();
        for wanted in order {
            let found = available.iter().position(|(kind, _)| kind.0 == wanted);
            match found {
                Some(at)
                    if qos.resource_use == ResourceUse::Frugal && available[at].1.needs_polling =>
                {
                    reasons.push(format!(
                        "{wanted} needs a spinning core and the stream is frugal"
                    ));
                }
                Some(at) => {
                    return Ok(Mapping {
                        datapath: at,
                        warning: warning_of_class(at),
                        rule: name,
                    });
                }
                None => {
                    if let Some((_, why)) = unavailable.iter().find(|(name, _)| name == wanted) {
                        reasons.push(format!("{wanted}: {why}"));
                    }
                }
            }
        }
        let why = if reasons.is_empty() {
            format!("none of {} is configured on this node", order.join(", "))
        } else {
            reasons.join("; ")
        };
        let missing = match rule {
            None => "no acceleration here".to_owned(),
            Some(_) => format!("no datapath of the rule {name} here"),
        };
        Ok(Mapping {
            datapath: udp,
            warning: format!("{missing}, using {used} ({why})"),
            rule: name,
        })
    }
}

/// Why nothing can be chosen.
fn nothing(unavailable: &[(String, String)]) -> Failure {
    let reasons = unavailable
        .iter()
        .map(|(name, why)| format!("{name}: {why}"));
    let reasons: Vec<_> = reasons.collect();
    let text = format!("no datapath works at present ({})", reasons.join("; "));
    Failure::new(ErrorCode::NotAvailable, text)
}

/// The index of the datapath that a stream names.
fn named(
    name: DatapathName,
    qos: Qos,
    available: &[(DatapathKind, Capabilities)],
    unavailable: &[(String, String)],
) -> Result<usize, Failure> {
    let refused = |why: &str| {
        Err(Failure::new(
            ErrorCode::NotAvailable,
            format!("the stream asks for the datapath {name} and no other: {why}"),
        ))
    };
    let found = available
        .iter()
        .position(|(kind, _)| kind.0 == name.as_str());
    match found {
        Some(at) if qos.resource_use == ResourceUse::Frugal && available[at].1.needs_polling => {
            refused(
                "it needs a spinning core, and the stream is frugal: ask for unlimited resource use",
            )
        }
        Some(at) => Ok(at),
        None => match unavailable.iter().find(|(known, _)| known == name.as_str()) {
            Some((_, why)) => refused(why),
            None => {
                let there: Vec<_> = available.iter().map(|(kind, _)| kind.0).collect();
                refused(&format!(
                    "this node has {}; one more is configured in [datapath.{name}]",
                    there.join(", ")
                ))
            }
        },
    }
}

/// What the sessions of a tenant may send together, on whatever lanes they are.
#[derive(Debug)]
pub struct Rates {
    messages: Rate,
    bytes: Rate,
}

impl Rates {
    /// Those of a policy.
    pub fn new(policy: &Policy) -> Self {
        Self {
            messages: Rate::new(policy.messages_per_second),
            bytes: Rate::new(policy.bytes_per_second),
        }
    }

    /// Those of a policy from now on.
    pub fn set(&self, policy: &Policy) {
        self.messages.set(policy.messages_per_second);
        self.bytes.set(policy.bytes_per_second);
    }

    /// Whether a message may pass now.
    #[inline]
    pub fn ready(&self, now_ns: i64) -> bool {
        self.messages.ready(now_ns) && self.bytes.ready(now_ns)
    }

    /// From when on a message may pass. This and `now_ns` are of a time that is never stepped, the same for all lanes.
    pub fn ready_at(&self) -> i64 {
        self.messages.ready_at().max(self.bytes.ready_at())
    }

    /// Pays for a message of so many bytes that passes.
    #[inline]
    pub fn take(&self, bytes: u32, now_ns: i64) {
        self.messages.take(1, now_ns);
        self.bytes.take(bytes.into(), now_ns);
    }
}

/// A token bucket of several lanes: the generic cell rate algorithm (ITU-T I.371, annex A). A message longer
/// than the bucket passes when the bucket is not in debt, and is paid for afterwards. Lanes that take at the
/// very same time may all pass once more than one alone would; each pays.
#[derive(Debug)]
struct Rate {
    /// 0 = unlimited.
    per_second: AtomicU64,
    /// When the bucket is empty of debt: tokens are ready from here on.
    ready_at: AtomicI64,
}

/// A bucket holds the tokens of this many nanoseconds: such bursts are let through.
const BURST_NANOS: i64 = 10_000_000;

impl Rate {
    /// `per_second` tokens a second; 0 = unlimited. Starts full.
    fn new(per_second: u64) -> Self {
        Self {
            per_second: AtomicU64::new(per_second),
            ready_at: AtomicI64::new(i64::MIN),
        }
    }

    /// Another rate, with a full bucket.
    fn set(&self, per_second: u64) {
        self.per_second.store(per_second, Relaxed);
        self.ready_at.store(i64::MIN, Relaxed);
    }

    /// Whether a message may pass now.
    #[inline]
    fn ready(&self, now_ns: i64) -> bool {
        self.per_second.load(Relaxed) == 0 || now_ns >= self.ready_at.load(Relaxed)
    }

    fn ready_at(&self) -> i64 {
        match self.per_second.load(Relaxed) {
            0 => i64::MIN,
            _ => self.ready_at.load(Relaxed),
        }
    }

    /// Pays for a message that passes.
    #[inline]
    fn take(&self, tokens: u64, now_ns: i64) {
        let per_second = self.per_second.load(Relaxed);
        if per_second == 0 {
            return;
        }
        let cost = (u128::from(tokens) * 1_000_000_000).div_ceil(u128::from(per_second));
        let cost = i64::try_from(cost).unwrap_or(i64::MAX);
        let full = now_ns.saturating_sub(BURST_NANOS);
        let pay = |ready_at: i64| Some(ready_at.max(full).saturating_add(cost));
        // Never fails: `pay` always has an answer.
        let _ = self.ready_at.try_update(Relaxed, Relaxed, pay);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_time::TrafficClass;

    fn capabilities(accelerated: bool, needs_polling: bool) -> Capabilities {
        Capabilities {
            accelerated,
            needs_polling,
            hardware_launch_time: false,
            speaks_udp: true,
            own_addresses: false,
            zero_copy: false,
            detail: String::new(),
        }
    }

    fn all() -> Vec<(DatapathKind, Capabilities)> {
        vec![
            (DatapathKind("udp"), capabilities(false, false)),
            (DatapathKind("xdp"), capabilities(true, false)),
            (DatapathKind("dpdk"), capabilities(true, true)),
        ]
    }

    #[test]
    fn the_default_mapping_is_the_papers() {
        let map = |qos, n: usize| {
            MappingPolicy::default()
                .map("t", qos, &all()[..n], &[], |_| false)
                .expect("mapped")
                .datapath
        };
        assert_eq!(map(Qos::slow(), 3), 0);
        assert_eq!(map(Qos::fast(), 3), 1);
        assert_eq!(map(Qos::fast().unlimited(), 3), 2);
        assert_eq!(map(Qos::fast().unlimited(), 2), 1);
        assert_eq!(map(Qos::fast(), 1), 0);
    }

    #[test]
    fn a_fallback_says_why() {
        let unavailable = [(
            "xdp".to_owned(),
            "missing privilege: CAP_NET_RAW".to_owned(),
        )];
        let mapping =
            MappingPolicy::default().map("t", Qos::fast(), &all()[..1], &unavailable, |_| false);
        let mapping = mapping.expect("mapped");
        assert_eq!(mapping.datapath, 0);
        assert!(
            mapping.warning.contains("CAP_NET_RAW"),
            "{}",
            mapping.warning
        );
        assert!(
            MappingPolicy::default()
                .map("t", Qos::slow(), &all(), &[], |_| false)
                .expect("mapped")
                .warning
                .is_empty()
        );
    }

    #[test]
    fn a_time_sensitive_stream_is_warned_only_where_its_link_has_no_schedule() {
        let qos = Qos::fast().time_sensitive(TrafficClass::new(5).expect("class"));
        let warning = |scheduled: &str| {
            MappingPolicy::default()
                .map("t", qos, &all()[..2], &[], |kind| kind.0 == scheduled)
                .expect("mapped")
                .warning
        };
        assert!(warning("udp").contains("no schedule is installed"));
        assert_eq!(warning("xdp"), "");
    }

    #[test]
    fn a_custom_mapping_may_allow_a_polling_datapath_only_to_those_who_accept_its_cost() {
        let policy = MappingPolicy {
            fast_frugal: vec!["dpdk".into()],
            fast_unlimited: vec!["dpdk".into()],
            ..MappingPolicy::default()
        };
        let map = |qos| {
            policy
                .map("t", qos, &all(), &[], |_| false)
                .expect("mapped")
        };
        assert_eq!(map(Qos::fast()).datapath, 0);
        assert_eq!(map(Qos::fast().unlimited()).datapath, 2);
    }

    #[test]
    fn a_datapath_that_is_named_is_had_or_refused_and_never_replaced() {
        let only = |name: &str| Qos::slow().only_over(name.parse().expect("a name"));
        let unavailable = [("fabric".to_owned(), "no device mlx5_0".to_owned())];
        let map = |qos| MappingPolicy::default().map("t", qos, &all(), &unavailable, |_| false);
        assert_eq!(map(only("xdp")).expect("there").datapath, 1);
        assert_eq!(map(only("dpdk").unlimited()).expect("there").datapath, 2);
        for (qos, why) in [
            (only("dpdk"), "ask for unlimited"),
            (only("fabric"), "no device mlx5_0"),
            (only("rdma"), "this node has udp, xdp, dpdk"),
        ] {
            let refused = map(qos).expect_err("refused");
            assert_eq!(refused.code, ErrorCode::NotAvailable);
            assert!(refused.message.contains(why), "{}", refused.message);
        }
    }

    #[test]
    fn the_first_rule_that_fits_tenant_and_class_chooses() {
        let rule = |name: &str, tenants: &[&str], classes, datapaths: &[&str]| MappingRule {
            name: name.into(),
            tenants: tenants.iter().map(|&name| name.into()).collect(),
            classes,
            datapaths: datapaths.iter().map(|&name| name.into()).collect(),
        };
        let policy = MappingPolicy {
            rules: vec![
                rule("press", &["press", "mill"], 1 << 5, &["dpdk", "xdp"]),
                rule("urgent", &[], 0b1100_0000, &["fabric"]),
                rule("mill", &["mill"], 0, &["udp"]),
            ],
            ..MappingPolicy::default()
        };
        let class = |number| TrafficClass::new(number).expect("a class");
        let map = |tenant: &str, qos: Qos| {
            let mapping = policy.map(tenant, qos, &all(), &[], |_| true);
            let mapping = mapping.expect("mapped");
            (mapping.datapath, mapping.rule, mapping.warning)
        };
        let fits = |at: usize, rule: &str| (at, rule.to_owned(), String::new());
        let timely = Qos::slow().time_sensitive(class(5));
        assert_eq!(map("press", timely), fits(1, "press"), "it is frugal");
        assert_eq!(map("mill", timely.unlimited()), fits(2, "press"));
        assert_eq!(map("saw", timely), fits(0, ""));
        assert_eq!(map("mill", Qos::fast()), fits(0, "mill"));
        assert_eq!(map("saw", Qos::fast()), fits(1, ""));
        let (at, rule, warning) = map("saw", Qos::fast().time_sensitive(class(7)));
        assert_eq!((at, rule.as_str()), (0, "urgent"));
        assert_eq!(
            warning,
            "no datapath of the rule urgent here, using kernel UDP (none of fabric is configured on this node)"
        );
        let explicit = Qos::fast().only_over("xdp".parse().expect("a name"));
        assert_eq!(map("mill", explicit), fits(1, ""));
    }

    #[test]
    fn a_rule_whose_datapaths_have_failed_falls_back_to_kernel_udp_and_says_why() {
        let policy = MappingPolicy {
            rules: vec![MappingRule {
                name: "press".into(),
                datapaths: vec!["dpdk".into(), "xdp".into()],
                ..MappingRule::default()
            }],
            ..MappingPolicy::default()
        };
        let unavailable = [("xdp", "eth1 is down"), ("dpdk", "no port")];
        let unavailable = unavailable.map(|(name, why)| (name.to_owned(), why.to_owned()));
        let mapping = policy.map("t", Qos::slow(), &all()[..1], &unavailable, |_| false);
        let mapping = mapping.expect("mapped");
        assert_eq!((mapping.datapath, mapping.rule.as_str()), (0, "press"));
        assert_eq!(
            mapping.warning,
            "no datapath of the rule press here, using kernel UDP (dpdk: no port; xdp: eth1 is down)"
        );
        // Where kernel UDP has failed as well, the first that works is the last resort.
        let fabric = [all()[2].clone()];
        let mapping = policy.map("t", Qos::slow(), &fabric, &unavailable, |_| false);
        assert_eq!(
            mapping.expect("mapped").warning,
            "no datapath of the rule press here, using dpdk (dpdk needs a spinning core and the stream is frugal; xdp: eth1 is down)"
        );
    }

    #[test]
    fn where_nothing_works_streams_are_refused_with_the_reasons() {
        let unavailable = [("xdp".to_owned(), "eth1 is down".to_owned())];
        let refused = MappingPolicy::default().map("t", Qos::fast(), &[], &unavailable, |_| false);
        let refused = refused.expect_err("refused");
        assert_eq!(
            (refused.code, refused.message.as_str()),
            (
                ErrorCode::NotAvailable,
                "no datapath works at present (xdp: eth1 is down)"
            )
        );
    }

    #[test]
    fn channels_and_classes_outside_the_policy_are_refused_by_name() {
        let policy = Policy {
            identity: "press".into(),
            write: vec![1..=9],
            read: vec![5..=5],
            classes: 0b11,
            ..Policy::default()
        };
        assert!(policy.check_write(ChannelId(9)).is_ok());
        let refusal = policy.check_write(ChannelId(10)).expect_err("not allowed");
        assert!(refusal.message.contains("press") && refusal.message.contains("10"));
        assert!(
            policy.check_read(ChannelId(5)).is_ok() && policy.check_read(ChannelId(4)).is_err()
        );
        let class = TrafficClass::new(2).expect("class");
        assert!(
            policy
                .check_class(Qos::fast().time_sensitive(class))
                .is_err()
        );
        assert!(policy.check_class(Qos::fast()).is_ok());
    }

    #[test]
    fn a_rate_lets_its_tokens_through_and_no_more_over_time() {
        let rate = Rate::new(1000);
        let mut passed = 0;
        for now in (0..10_000_000_000i64).step_by(100_000) {
            if rate.ready(now) {
                rate.take(1, now);
                passed += 1;
            }
        }
        assert!((9_990..=10_020).contains(&passed), "{passed}");
    }

    #[test]
    fn lanes_that_share_a_rate_get_no_more_than_one_lane() {
        let policy = Policy {
            messages_per_second: 1000,
            ..Policy::default()
        };
        let rates = Rates::new(&policy);
        let mut passed = [0; 3];
        for now in (0..10_000_000_000i64).step_by(100_000) {
            for lane in &mut passed {
                if rates.ready(now) {
                    rates.take(8, now);
                    *lane += 1;
                }
            }
        }
        let all: i32 = passed.iter().sum();
        assert!((9_990..=10_020).contains(&all), "{passed:?}");
        assert!(!rates.ready(9_999_900_000) && rates.ready(rates.ready_at()));
        rates.set(&Policy::default());
        assert!(rates.ready(i64::MIN));
    }

    #[test]
    fn a_message_larger_than_the_bucket_passes_and_is_paid_for() {
        let rate = Rate::new(1_000_000);
        assert!(rate.ready(0));
        rate.take(16_000_000, 0);
        assert!(!rate.ready(1_000_000_000));
        assert!(!rate.ready(15_000_000_000));
        assert!(rate.ready(16_000_000_000));
    }

    #[test]
    fn a_clock_that_jumps_back_delays_but_never_overflows() {
        let rate = Rate::new(1);
        rate.take(u64::MAX, i64::MAX);
        assert!(!rate.ready(0));
    }
}
