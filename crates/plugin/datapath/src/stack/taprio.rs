//! The kernel's `taprio` queueing discipline (Linux `tc-taprio(8)`), which keeps what others send by an interface inside windows.
//!
//! It knows two classes of packets here. What has a priority (`SO_PRIORITY`) from [`OWN_PRIORITY`] on is the runtime's own: it has been
//! at the gates already, so its gate here is always open and it has a queue of its own, that it waits for nobody's. Everything else
//! has the remaining queues, and a gate. A program needs a capability for such a priority, and what comes from
//! another network namespace, or is forwarded, has none.

use std::io;
use std::net::IpAddr;

use takt_time::TaiTime;

use super::launch::{
    GET_QDISC, KIND, MQPRIO_CLASSES, NEW_QDISC, OPTIONS, ROOT, TCMSG, find, u32_at,
};
use super::messages::Link;
use super::netlink::{NLMSG_HEADER, Netlink, Refusal};

/// The least priority of the runtime's own packets; one of class `n` has that much more.
pub const OWN_PRIORITY: u32 = 8;

/// `RTM_DELQDISC` of `linux/rtnetlink.h`.
const DELETE_QDISC: u16 = 37;
/// `NLM_F_REPLACE`, `NLM_F_EXCL` and `NLM_F_CREATE` of `linux/netlink.h`.
const REPLACE: u16 = 0x100;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;
/// `TCA_TAPRIO_ATTR_…` of `linux/pkt_sched.h`.
const PRIORITIES: u16 = 1;
const ENTRIES: u16 = 2;
const BASE_TIME: u16 = 3;
const CLOCK: u16 = 5;
const CYCLE_TIME: u16 = 8;
const FLAGS: u16 = 10;
/// `TCA_TAPRIO_SCHED_ENTRY` and `TCA_TAPRIO_SCHED_ENTRY_…`.
const ENTRY: u16 = 1;
const COMMAND: u16 = 2;
const GATES: u16 = 3;
const INTERVAL: u16 = 4;
/// `TC_TAPRIO_CMD_SET_GATES`.
const SET_GATES: u8 = 0;
/// `TAPRIO_ATTR_FLAG_FULL_OFFLOAD`.
const FULL_OFFLOAD: u32 = 2;
/// `TC_QOPT_MAX_QUEUE` and the priorities of `struct tc_mqprio_qopt`.
const CLASSES: usize = MQPRIO_CLASSES as usize;
/// What tells the discipline from those of others after a restart.
const HANDLE: u32 = 0x7a97_0000;
const NAME: &[u8] = b"taprio\0";

/// What `taprio` is to do at the root of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taprio {
    /// When a cycle begins. One that has passed stands for the next instant at which a cycle begins.
    pub base_time: TaiTime,
    /// Whether the packets of others pass, and for how many nanoseconds: a cycle.
    pub others: Vec<(bool, u64)>,
    /// How many queues, from the first one on, only the runtime's own packets have.
    pub own_queues: u16,
    /// How many queues there are.
    pub queues: u16,
    /// The device keeps the gates, by its own clock.
    pub offload: bool,
}

/// An interface with an address of this network namespace; below a VLAN the one that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Its index.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Largest IP packet in bytes.
    pub mtu: u32,
    /// Transmit queues that it has, be they in use or not.
    pub queues: u16,
}

/// What is at the root of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Root {
    /// What the kernel puts there by itself.
    Default,
    /// What [`Taprio::program`] has put there, of this process or of one before.
    Own,
    /// What somebody else has put there: `htb 1:`.
    Foreign(String),
}

/// Why `taprio` is not in force.
#[derive(Debug, thiserror::Error)]
pub enum TaprioError {
    /// No such queueing discipline.
    #[error(
        "this kernel has no taprio: take one that is built with CONFIG_NET_SCH_TAPRIO, or load its module (`modprobe sch_taprio`)"
    )]
    Absent,
    /// No privilege.
    #[error(
        "the kernel does not let this process change queueing disciplines: grant CAP_NET_ADMIN"
    )]
    NotPermitted,
    /// One queue.
    #[error(
        "it has {0} transmit queue(s) for others and for what is scheduled, and taprio needs two at least: take a device with more, or give it more (`ethtool -L`, or `numtxqueues` where it is made)"
    )]
    Queues(u16),
    /// Somebody else's.
    #[error(
        "`{0}` is at its root, which is not Takt's: remove it first (`tc qdisc del dev {1} root`)"
    )]
    Foreign(String, String),
    /// The kernel does not do it.
    #[error("the kernel refuses the schedule: {words}")]
    Refused {
        /// Its words, with its number.
        words: String,
    },
    /// Any other answer.
    #[error("no answer from the kernel: {0}")]
    System(#[from] io::Error),
}

/// The interface that has this address, if there is one.
///
/// # Errors
/// The kernel's.
pub fn attached(address: IpAddr) -> io::Result<Option<Attached>> {
    let mut netlink = Netlink::open()?;
    let addresses = netlink.addresses()?;
    let Some((ifindex, _)) = addresses.into_iter().find(|(_, of)| *of == address) else {
        return Ok(None);
    };
    let link = netlink.link(ifindex)?;
    let Some((below, _)) = link.as_ref().and_then(|link| link.vlan) else {
        return Ok(link.map(Attached::from));
    };
    Ok(netlink.link(below)?.map(Attached::from))
}

/// The interfaces of this network namespace that have what [`Taprio::program`] has put there, of whatever process.
///
/// # Errors
/// The kernel's.
pub fn programmed() -> io::Result<Vec<Attached>> {
    let mut netlink = Netlink::open()?;
    let mut found = Vec::new();
    netlink.dump(GET_QDISC, &[0; TCMSG], |message| {
        if let Some((ifindex, Root::Own)) = read_root(message) {
            found.push(ifindex);
        }
    })?;
    let mut interfaces = Vec::new();
    for ifindex in found {
        // One that has gone meanwhile has nothing any more.
        interfaces.extend(netlink.link(ifindex)?.map(Attached::from));
    }
    Ok(interfaces)
}

/// What is at the root of an interface.
///
/// # Errors
/// The kernel's.
pub fn root(ifindex: u32) -> io::Result<Root> {
    root_by(&mut Netlink::open()?, ifindex)
}

fn root_by(netlink: &mut Netlink, ifindex: u32) -> io::Result<Root> {
    let mut found = Root::Default;
    netlink.dump(GET_QDISC, &[0; TCMSG], |message| {
        if let Some((of, root)) = read_root(message)
            && of == ifindex
        {
            found = root;
        }
    })?;
    Ok(found)
}

/// The interface of a message with its header, and what it says to be at the root there.
fn read_root(message: &[u8]) -> Option<(u32, Root)> {
    let body = message.get(NLMSG_HEADER..)?;
    let handle = u32_at(body, 8)?;
    if u32_at(body, 12)? != ROOT {
        return None;
    }
    let kind = find(body.get(TCMSG..)?, KIND)?;
    let root = match handle {
        0 => Root::Default,
        HANDLE if kind == NAME => Root::Own,
        _ => {
            let kind = String::from_utf8_lossy(kind.strip_suffix(b"\0").unwrap_or(kind));
            Root::Foreign(format!("{kind} {:x}:", handle >> 16))
        }
    };
    Some((u32_at(body, 4)?, root))
}

impl From<Link> for Attached {
    fn from(link: Link) -> Self {
        Self {
            ifindex: link.ifindex,
            name: link.name,
            mtu: link.mtu,
            queues: link.queues,
        }
    }
}

impl Attached {
    /// Takes away what [`Taprio::program`] has put at the root; false if it is not there.
    ///
    /// # Errors
    /// [`TaprioError`].
    pub fn release(&self) -> Result<bool, TaprioError> {
        let mut netlink = Netlink::open()?;
        if root_by(&mut netlink, self.ifindex)? != Root::Own {
            return Ok(false);
        }
        // The handle says which one: no other can be meant, whatever has happened since.
        let ended = netlink.change(DELETE_QDISC, 0, &self.message());
        ended.map(|()| true).map_err(refused)
    }

    /// `struct tcmsg`, and the kind.
    fn message(&self) -> Vec<u8> {
        let mut body = vec![0; 4];
        for word in [self.ifindex, HANDLE, ROOT, 0] {
            body.extend(word.to_ne_bytes());
        }
        attribute(&mut body, KIND, NAME);
        body
    }
}

impl Taprio {
    /// Puts it at the root of an interface, in place of what the kernel has put there by itself. Where it is there already the gates
    /// are others from the base time on.
    ///
    /// # Errors
    /// [`TaprioError`]; what was there is there still.
    pub fn program(&self, interface: &Attached) -> Result<(), TaprioError> {
        if self.own_queues >= self.queues {
            return Err(TaprioError::Queues(self.queues));
        }
        let mut netlink = Netlink::open()?;
        // Neither flag lets the kernel touch another one that comes there meanwhile.
        let flags = match root_by(&mut netlink, interface.ifindex)? {
            Root::Foreign(what) => return Err(TaprioError::Foreign(what, interface.name.clone())),
            Root::Own => REPLACE,
            Root::Default => CREATE | EXCLUSIVE,
        };
        let mut put = |own| {
            let mut body = interface.message();
            nest(&mut body, OPTIONS, |body| self.options(own, body));
            netlink.change(NEW_QDISC, flags, &body)
        };
        // Kernels before 6.3 take the queues in their order, and classes in no other than that of their queues: there the runtime's
        // comes first as the lower class.
        match put(Own::Higher) {
            Err(refusal) if refusal.error.raw_os_error() == Some(libc::EINVAL) => put(Own::Lower),
            put => put,
        }
        .map_err(refused)
    }

    /// As `tc` writes them, in its order.
    fn options(&self, own: Own, body: &mut Vec<u8>) {
        let (own_class, others_class) = own.classes();
        // The device has a clock of its own.
        match self.offload {
            true => attribute(body, FLAGS, &FULL_OFFLOAD.to_ne_bytes()),
            false => attribute(body, CLOCK, &libc::CLOCK_TAI.to_ne_bytes()),
        }
        attribute(body, PRIORITIES, &self.priorities(own));
        attribute(body, BASE_TIME, &self.base_time.as_nanos().to_ne_bytes());
        let cycle: u64 = self.others.iter().map(|(_, ns)| ns).sum();
        attribute(body, CYCLE_TIME, &cycle.to_ne_bytes());
        nest(body, ENTRIES | NESTED, |body| {
            for &(pass, ns) in &self.others {
                let gates = 1 << own_class | u32::from(pass) << others_class;
                let mut left = ns;
                while left > 0 {
                    let interval = u32::try_from(left).unwrap_or(u32::MAX);
                    left -= u64::from(interval);
                    nest(body, ENTRY, |body| {
                        attribute(body, COMMAND, &[SET_GATES]);
                        attribute(body, GATES, &gates.to_ne_bytes());
                        attribute(body, INTERVAL, &interval.to_ne_bytes());
                    });
                }
            }
        });
    }

    /// `struct tc_mqprio_qopt`.
    fn priorities(&self, own: Own) -> Vec<u8> {
        let (own_class, others_class) = own.classes();
        let mut option = vec![2];
        option.extend((0..CLASSES as u32).map(|priority| match priority {
            OWN_PRIORITY.. => own_class,
            _ => others_class,
        }));
        option.push(0);
        let (mut counts, mut offsets) = ([0u16; CLASSES], [0u16; CLASSES]);
        counts[usize::from(own_class)] = self.own_queues;
        counts[usize::from(others_class)] = self.queues - self.own_queues;
        offsets[usize::from(others_class)] = self.own_queues;
        let words = counts.into_iter().chain(offsets);
        option.extend(words.flat_map(u16::to_ne_bytes));
        option
    }
}

/// Where the class of the runtime's own packets is.
#[derive(Clone, Copy)]
enum Own {
    Higher,
    Lower,
}

impl Own {
    /// The class of the runtime's own packets, and of others'.
    fn classes(self) -> (u8, u8) {
        match self {
            Self::Higher => (1, 0),
            Self::Lower => (0, 1),
        }
    }
}

fn refused(Refusal { error, words }: Refusal) -> TaprioError {
    match error.raw_os_error() {
        Some(libc::ENOENT) => TaprioError::Absent,
        Some(libc::EPERM) => TaprioError::NotPermitted,
        _ if words.is_empty() => TaprioError::Refused {
            words: error.to_string(),
        },
        _ => TaprioError::Refused {
            words: format!("{words} ({error})"),
        },
    }
}

/// An attribute (Linux `netlink(7)`).
fn attribute(body: &mut Vec<u8>, kind: u16, payload: &[u8]) {
    nest(body, kind, |body| body.extend(payload));
}

/// An attribute whose payload is written by `write`.
fn nest(body: &mut Vec<u8>, kind: u16, write: impl FnOnce(&mut Vec<u8>)) {
    let at = body.len();
    body.extend([0; 2]);
    body.extend(kind.to_ne_bytes());
    write(body);
    // Entries are bounded, see `GateList::MAX_ENTRIES`.
    let length = u16::try_from(body.len() - at).unwrap_or(u16::MAX);
    body[at..at + 2].copy_from_slice(&length.to_ne_bytes());
    body.resize(body.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What iproute2 6.1 sends, from `struct tcmsg` on, for an interface of index 7:
    /// `tc qdisc replace dev … root handle 7a97: taprio num_tc 2 map 0 0 0 0 0 0 0 0 1 1 1 1 1 1 1 1 queues 3@1 1@0
    ///  base-time 1800000000000000000 sched-entry S 3 600000 sched-entry S 2 400000 cycle-time 1000000 clockid CLOCK_TAI`
    const BY_TC: &str = concat!(
        "00000000070000000000977affffffff000000000b00010074617072696f0000b8000200080005000b00000056000100",
        "020000000000000000010101010101010100030001000000000000000000000000000000000000000000000000000000",
        "0000010000000000000000000000000000000000000000000000000000000000000000000c0003000000b49376e2fa18",
        "0c00080040420f00000000003c0002801c0001000500020000000000080003000300000008000400c02709001c000100",
        "0500020000000000080003000200000008000400801a0600",
    );

    fn octets(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|octet| *octet != b' ').collect();
        let pairs = digits.chunks(2).map(|pair| {
            let pair = std::str::from_utf8(pair).expect("digits");
            u8::from_str_radix(pair, 16).expect("two digits")
        });
        pairs.collect()
    }

    fn interface() -> Attached {
        Attached {
            ifindex: 7,
            name: "eth0".into(),
            mtu: 1500,
            queues: 4,
        }
    }

    fn taprio() -> Taprio {
        Taprio {
            base_time: TaiTime::from_nanos(1_800_000_000_000_000_000),
            others: vec![(true, 600_000), (false, 400_000)],
            own_queues: 1,
            queues: 4,
            offload: false,
        }
    }

    fn body(taprio: &Taprio, own: Own) -> Vec<u8> {
        let mut body = interface().message();
        nest(&mut body, OPTIONS, |body| taprio.options(own, body));
        body
    }

    #[test]
    fn the_kernel_is_asked_as_tc_asks_it() {
        assert_eq!(body(&taprio(), Own::Higher), octets(BY_TC));
    }

    #[test]
    fn an_older_kernel_gets_the_classes_in_the_order_of_their_queues() {
        let body = body(&taprio(), Own::Lower);
        let options = find(&body[TCMSG..], OPTIONS).expect("options");
        let priorities = find(options, PRIORITIES).expect("priorities");
        assert_eq!(
            priorities[..18],
            octets("02 0101010101010101 0000000000000000 00")
        );
        assert_eq!(priorities[18..22], octets("01000300"));
        assert_eq!(priorities[50..54], octets("00000100"));
        let entries = find(options, ENTRIES).expect("entries");
        let first = find(entries, ENTRY).expect("an entry");
        assert_eq!(find(first, GATES), Some(&[3, 0, 0, 0][..]));
    }

    #[test]
    fn a_device_that_keeps_the_gates_goes_by_its_own_clock() {
        let offload = Taprio {
            offload: true,
            ..taprio()
        };
        let body = body(&offload, Own::Higher);
        let options = find(&body[TCMSG..], OPTIONS).expect("options");
        assert_eq!(find(options, FLAGS), Some(&[2, 0, 0, 0][..]));
        assert_eq!(find(options, CLOCK), None);
    }

    #[test]
    fn a_window_longer_than_an_entry_can_be_is_several() {
        let long = Taprio {
            others: vec![(true, 10_000_000_000)],
            ..taprio()
        };
        let body = body(&long, Own::Higher);
        let options = find(&body[TCMSG..], OPTIONS).expect("options");
        let mut entries = find(options, ENTRIES).expect("entries");
        let mut sum = 0;
        while let Some(entry) = find(entries, ENTRY) {
            sum += u64::from(
                find(entry, INTERVAL)
                    .and_then(|ns| u32_at(ns, 0))
                    .expect("one"),
            );
            entries = &entries[entry.len() + 4..];
        }
        assert_eq!(sum, 10_000_000_000);
    }

    #[test]
    fn only_what_has_the_handle_and_the_kind_is_ones_own() {
        let at_root = |ifindex: u32, handle: u32, parent: u32, kind: &[u8]| {
            let mut message = vec![0; NLMSG_HEADER + 4];
            for word in [ifindex, handle, parent, 2] {
                message.extend(word.to_ne_bytes());
            }
            attribute(&mut message, KIND, kind);
            read_root(&message)
        };
        let foreign = |text: &str| Some((7, Root::Foreign(text.into())));
        assert_eq!(at_root(7, HANDLE, ROOT, b"taprio\0"), Some((7, Root::Own)));
        assert_eq!(at_root(7, HANDLE, ROOT, b"htb\0"), foreign("htb 7a97:"));
        assert_eq!(at_root(7, 0x10000, ROOT, b"taprio\0"), foreign("taprio 1:"));
        assert_eq!(at_root(7, 0, ROOT, b"mq\0"), Some((7, Root::Default)));
        assert_eq!(at_root(7, 0x10000, HANDLE + 1, b"etf\0"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(message in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_root(&message);
        }
    }
}
