//! The queueing disciplines of the kernel that send packets at their launch time: which interface has them,
//! for which classes.
//!
//! `etf` (Linux `tc-etf(8)`) at the root of an interface, or below `mqprio` (`tc-mqprio(8)`) on every queue
//! that a class of traffic has. It must go by `CLOCK_TAI` and must not be in deadline mode, which sends as soon
//! as it can. Below `taprio` it is of no use here: once a socket has said that its packets have launch times
//! (`SO_TXTIME`), `taprio` wants one in an open window for each of them, on every interface.
//!
//! The messages are read here and not by the netlink library, which does not know the options of these kinds.

use std::io;
use std::net::IpAddr;

use takt_time::TrafficClass;

use super::netlink::Netlink;
use super::watch::Query;

/// `RTM_NEWQDISC` and `RTM_GETQDISC` of `linux/rtnetlink.h`.
pub(super) const NEW_QDISC: u16 = 36;
pub(super) const GET_QDISC: u16 = 38;
/// Lengths of `struct nlmsghdr` and `struct tcmsg`.
const HEADER: usize = 16;
pub(super) const TCMSG: usize = 20;
/// `TC_H_ROOT`, and what tells the qdisc in a handle, of `linux/pkt_sched.h`.
pub(super) const ROOT: u32 = 0xffff_ffff;
const MAJOR: u32 = 0xffff_0000;
/// `TCA_KIND` and `TCA_OPTIONS`.
pub(super) const KIND: u16 = 1;
pub(super) const OPTIONS: u16 = 2;
/// `TCA_ETF_PARMS`; in it `struct tc_etf_qopt`, with these flags.
const ETF_PARMS: u16 = 1;
const ETF_DEADLINE_MODE: u32 = 1;
const ETF_OFFLOAD: u32 = 1 << 1;
/// `struct tc_mqprio_qopt`: the number of traffic classes, the class of each priority, a flag, and for each
/// class how many queues it has from which on.
const MQPRIO_MAP: usize = 1;
const MQPRIO_COUNTS: usize = 18;
const MQPRIO_OFFSETS: usize = 50;
pub(super) const MQPRIO_CLASSES: u8 = 16;

/// How an `etf` queueing discipline keeps launch times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Etf {
    /// How much earlier than the launch time a packet goes on to the device, nanoseconds.
    pub delta_ns: u32,
    /// The device holds it until then. Otherwise nothing does: it is on the wire earlier by `delta_ns`.
    pub offload: bool,
}

/// The launch times that an interface keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchQueues {
    /// Which interface.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// What packets of each class (as `SO_PRIORITY`) pass.
    pub classes: [Option<Etf>; TrafficClass::COUNT],
}

/// The interfaces of this thread's network namespace that keep launch times. None where one has `taprio`.
///
/// # Errors
/// The kernel's.
pub fn launch_queues() -> io::Result<Vec<LaunchQueues>> {
    let mut netlink = Netlink::open()?;
    let disciplines = disciplines(&mut netlink)?;
    let mut found = Vec::new();
    for (ifindex, classes) in keepers(&disciplines) {
        // Gone meanwhile: nobody can be reached by it.
        if let Some(link) = netlink.link(ifindex)? {
            let name = link.name;
            found.push(LaunchQueues {
                ifindex,
                name,
                classes,
            });
        }
    }
    Ok(found)
}

/// Which of an interface's first `count` transmit queues are set up for launch times that the device keeps: have
/// `etf` with `offload`, at the root or below `mqprio`.
///
/// # Errors
/// The kernel's.
pub fn offloading_queues(ifindex: u32, count: u32) -> io::Result<Vec<u32>> {
    let disciplines = disciplines(&mut Netlink::open()?)?;
    let offloads = |queue: &u32| offloads(&disciplines, ifindex, *queue);
    Ok((0..count).filter(offloads).collect())
}

/// All of this network namespace.
fn disciplines(netlink: &mut Netlink) -> io::Result<Vec<Discipline>> {
    let mut found = Vec::new();
    netlink.dump(GET_QDISC, &[0; TCMSG], |message| {
        found.extend(Discipline::read(message));
    })?;
    Ok(found)
}

/// The interface by which packets from `source` leave for `destination`, below a VLAN the one that it is on;
/// `None` without a route to another machine.
///
/// # Errors
/// The kernel's.
pub fn egress_interface(destination: IpAddr, source: Option<IpAddr>) -> io::Result<Option<u32>> {
    let mut netlink = Netlink::open()?;
    let Some(route) = netlink.route(Query {
        destination,
        source,
        oif: 0,
        iif: 0,
    })?
    else {
        return Ok(None);
    };
    let link = netlink.link(route.ifindex)?;
    Ok(link.map(|link| link.vlan.map_or(link.ifindex, |(below, _)| below)))
}

/// A queueing discipline of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Discipline {
    ifindex: u32,
    handle: u32,
    parent: u32,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// One that this crate can use.
    Etf(Etf),
    /// The queues of each class.
    Mqprio([Queues; TrafficClass::COUNT]),
    Taprio,
    Other,
}

/// Consecutive queues of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Queues {
    first: u16,
    count: u16,
}

impl Discipline {
    /// Reads a message with its header; `None` if it is another one or malformed.
    fn read(message: &[u8]) -> Option<Self> {
        if u16_at(message, 4)? != NEW_QDISC {
            return None;
        }
        let body = message.get(HEADER..)?;
        let attributes = body.get(TCMSG..)?;
        let kind = find(attributes, KIND)?;
        let options = find(attributes, OPTIONS).unwrap_or_default();
        Some(Self {
            ifindex: u32_at(body, 4)?,
            handle: u32_at(body, 8)?,
            parent: u32_at(body, 12)?,
            kind: match kind.strip_suffix(b"\0").unwrap_or(kind) {
                b"etf" => read_etf(options).map_or(Kind::Other, Kind::Etf),
                b"mqprio" => read_mqprio(options).map_or(Kind::Other, Kind::Mqprio),
                b"taprio" => Kind::Taprio,
                _ => Kind::Other,
            },
        })
    }
}

fn read_etf(options: &[u8]) -> Option<Etf> {
    let parameters = find(options, ETF_PARMS)?;
    let delta_ns = u32_at(parameters, 0).filter(|delta| i32::try_from(*delta).is_ok())?;
    let clock = u32_at(parameters, 4)?;
    let flags = u32_at(parameters, 8)?;
    (clock == libc::CLOCK_TAI as u32 && flags & ETF_DEADLINE_MODE == 0).then_some(Etf {
        delta_ns,
        offload: flags & ETF_OFFLOAD != 0,
    })
}

fn read_mqprio(options: &[u8]) -> Option<[Queues; TrafficClass::COUNT]> {
    let classes = *options.first()?;
    if classes > MQPRIO_CLASSES {
        return None;
    }
    let mut of_class = [Queues::default(); TrafficClass::COUNT];
    for (priority, queues) in of_class.iter_mut().enumerate() {
        let class = *options.get(MQPRIO_MAP + priority)?;
        if class < classes {
            let at = 2 * usize::from(class);
            *queues = Queues {
                first: u16_at(options, MQPRIO_OFFSETS + at)?,
                count: u16_at(options, MQPRIO_COUNTS + at)?,
            };
        }
    }
    Some(of_class)
}

/// The interfaces that keep the launch times of at least one class, in the order of the disciplines.
fn keepers(disciplines: &[Discipline]) -> Vec<(u32, [Option<Etf>; TrafficClass::COUNT])> {
    if disciplines.iter().any(|one| one.kind == Kind::Taprio) {
        return Vec::new();
    }
    let roots = disciplines.iter().filter(|one| one.parent == ROOT);
    let kept = roots.map(|root| {
        let classes = match root.kind {
            Kind::Etf(etf) => [Some(etf); TrafficClass::COUNT],
            Kind::Mqprio(of_class) => of_class.map(|queues| below(disciplines, root, queues)),
            _ => [None; TrafficClass::COUNT],
        };
        (root.ifindex, classes)
    });
    kept.filter(|(_, classes)| classes.iter().any(Option::is_some))
        .collect()
}

/// What all of these queues below `root` have in common: a packet may pass any of them.
fn below(disciplines: &[Discipline], root: &Discipline, queues: Queues) -> Option<Etf> {
    let mut common: Option<Etf> = None;
    for queue in queues.first..queues.first.checked_add(queues.count)? {
        let parent = below_root(root, queue.into())?;
        let etf = disciplines.iter().find_map(|one| match one.kind {
            Kind::Etf(etf) if (one.ifindex, one.parent) == (root.ifindex, parent) => Some(etf),
            _ => None,
        })?;
        if common.is_some_and(|common| common.offload != etf.offload) {
            return None;
        }
        let delta_ns = common.map_or(0, |common| common.delta_ns).max(etf.delta_ns);
        common = Some(Etf { delta_ns, ..etf });
    }
    common
}

/// The parent that a discipline on this queue has.
fn below_root(root: &Discipline, queue: u32) -> Option<u32> {
    let number = u16::try_from(queue.checked_add(1)?).ok()?;
    Some(root.handle & MAJOR | u32::from(number))
}

/// Whether this queue of an interface has `etf` with `offload`. At the root it is the first queue's.
fn offloads(disciplines: &[Discipline], ifindex: u32, queue: u32) -> bool {
    let own = || disciplines.iter().filter(|one| one.ifindex == ifindex);
    let Some(root) = own().find(|one| one.parent == ROOT) else {
        return false;
    };
    let etf = match root.kind {
        Kind::Etf(etf) if queue == 0 => Some(etf),
        Kind::Mqprio(_) => own().find_map(|one| match one.kind {
            Kind::Etf(etf) if Some(one.parent) == below_root(root, queue) => Some(etf),
            _ => None,
        }),
        _ => None,
    };
    etf.is_some_and(|etf| etf.offload)
}

/// The payload of the first attribute of a kind (RFC 3549, section 2.3.3; Linux `netlink(7)`); stops at a
/// malformed length.
pub(super) fn find(mut attributes: &[u8], wanted: u16) -> Option<&[u8]> {
    const LENGTH: usize = 4;
    /// `NLA_TYPE_MASK`.
    const TYPE: u16 = 0x3fff;
    loop {
        let length = usize::from(u16_at(attributes, 0)?);
        let kind = u16_at(attributes, 2)? & TYPE;
        let payload = attributes.get(LENGTH..length)?;
        if kind == wanted {
            return Some(payload);
        }
        attributes = attributes.get(length.next_multiple_of(4)..)?;
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `CLOCK_TAI`.
    const TAI: u32 = 11;
    const SOFTWARE: Etf = Etf {
        delta_ns: 150_000,
        offload: false,
    };

    // As Linux 6.1 answers for an interface of eight queues, statistics included: etf at the root with a delta of
    // 200 µs; mqprio with priorities 0 to 3 on one queue and 4 to 7 on the next; etf below it on the latter.
    const ETF_AT_ROOT: &str = concat!(
        "a400000024000200010000005e000000000000000400000000000e80ffffffff09000000080001006574660014000200",
        "10000100400d03000b0000000000000005000c0000000000300007001400010000000000000000000000000000000000",
        "1800030000000000000000000000000000000000000000002c0003000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000",
    );
    const MQPRIO: &str = concat!(
        "ec00000024000200010000005e000000000000000400000000000001ffffffff010000000b0001006d717072696f0000",
        "580002000200000000010101010000000000000000000100010000000000000000000000000000000000000000000000",
        "0000000000000000010000000000000000000000000000000000000000000000000000000000000005000c0000000000",
        "300007001400010000000000000000000000000000000000180003000000000000000000000000000000000000000000",
        "2c00030000000000000000000000000000000000000000000000000000000000000000000000000000000000",
    );
    const ETF_BELOW: &str = concat!(
        "a400000024000200010000005e0000000000000004000000000010800200000101000000080001006574660014000200",
        "10000100400d03000b0000000000000005000c0000000000300007001400010000000000000000000000000000000000",
        "1800030000000000000000000000000000000000000000002c0003000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000",
    );

    fn recorded(text: &str) -> Discipline {
        let octets = (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("two digits"));
        Discipline::read(&octets.collect::<Vec<u8>>()).expect("a discipline")
    }

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(ifindex: u32, handle: u32, parent: u32, kind: &str, options: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 4];
        for word in [ifindex, handle, parent, 2] {
            body.extend(word.to_ne_bytes());
        }
        body.extend(attribute(KIND, format!("{kind}\0").as_bytes()));
        body.extend(attribute(OPTIONS, options));
        let mut message = (body.len() as u32 + 16).to_ne_bytes().to_vec();
        message.extend(NEW_QDISC.to_ne_bytes());
        message.resize(HEADER, 0);
        message.extend(body);
        message
    }

    fn etf(ifindex: u32, parent: u32, clock: u32, flags: u32, delta_ns: u32) -> Vec<u8> {
        let mut parameters = Vec::new();
        for word in [delta_ns, clock, flags] {
            parameters.extend(word.to_ne_bytes());
        }
        let options = attribute(ETF_PARMS, &parameters);
        message(ifindex, 0x8001_0000, parent, "etf", &options)
    }

    /// Priorities 0 to 2 in class 0 on queue 0, 3 in class 1 on queues 1 and 2, 4 to 7 in class 2 on queue 3.
    fn mqprio(ifindex: u32) -> Vec<u8> {
        let mut options = vec![3];
        options.extend([0, 0, 0, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0, 0]);
        options.push(0);
        for (first, rest) in [([1u16, 2, 1], 13), ([0, 1, 3], 13)] {
            options.extend(first.iter().flat_map(|word| word.to_ne_bytes()));
            options.resize(options.len() + 2 * rest, 0);
        }
        assert_eq!(options.len(), 82);
        message(ifindex, 0x0100_0000, ROOT, "mqprio", &options)
    }

    fn found(messages: &[Vec<u8>]) -> Vec<(u32, [Option<Etf>; TrafficClass::COUNT])> {
        let disciplines: Vec<Discipline> = messages
            .iter()
            .map(|message| Discipline::read(message).expect("a discipline"))
            .collect();
        keepers(&disciplines)
    }

    #[test]
    fn etf_at_the_root_keeps_the_launch_times_of_every_class() {
        let messages = [
            message(1, 0, ROOT, "noqueue", &[]),
            etf(2, ROOT, TAI, 0, 150_000),
            etf(3, ROOT, TAI, ETF_OFFLOAD, 200_000),
        ];
        let offload = Etf {
            delta_ns: 200_000,
            offload: true,
        };
        assert_eq!(
            found(&messages),
            [(2, [Some(SOFTWARE); 8]), (3, [Some(offload); 8])]
        );
    }

    #[test]
    fn what_a_kernel_answers_is_read() {
        let etf = Some(Etf {
            delta_ns: 200_000,
            offload: false,
        });
        assert_eq!(keepers(&[recorded(ETF_AT_ROOT)]), [(4, [etf; 8])]);
        let mqprio = [recorded(MQPRIO), recorded(ETF_BELOW)];
        let upper = [None, None, None, None, etf, etf, etf, etf];
        assert_eq!(keepers(&mqprio), [(4, upper)]);
        assert_eq!(keepers(&mqprio[..1]), []);
    }

    #[test]
    fn another_clock_and_deadlines_are_no_launch_times() {
        let unusable = [
            etf(2, ROOT, 1, 0, 150_000),
            etf(3, ROOT, TAI, ETF_DEADLINE_MODE, 150_000),
            etf(4, ROOT, TAI, 0, u32::MAX),
            message(5, 0, ROOT, "etf", &[]),
        ];
        assert_eq!(found(&unusable), []);
    }

    #[test]
    fn below_mqprio_a_class_needs_etf_on_each_of_its_queues() {
        let other = Etf {
            delta_ns: 300_000,
            ..SOFTWARE
        };
        let queue = |queue: u32| 0x0100_0000 + queue + 1;
        let mut messages = vec![mqprio(2), etf(2, queue(1), TAI, 0, 300_000)];
        // On another interface, and below another root: neither is meant.
        messages.push(etf(3, queue(2), TAI, 0, 150_000));
        messages.push(etf(2, 0x0200_0003, TAI, 0, 150_000));
        assert_eq!(found(&messages), []);
        messages.push(etf(2, queue(3), TAI, 0, 150_000));
        let some = Some(SOFTWARE);
        let upper = [None, None, None, None, some, some, some, some];
        assert_eq!(found(&messages), [(2, upper)]);
        // The greater delta of both queues is safe for either.
        messages.push(etf(2, queue(2), TAI, 0, 150_000));
        let all = [None, None, None, Some(other), some, some, some, some];
        assert_eq!(found(&messages), [(2, all)]);
        messages.pop();
        messages.push(etf(2, queue(2), TAI, ETF_OFFLOAD, 150_000));
        assert_eq!(found(&messages), [(2, upper)], "a packet may pass either");
    }

    #[test]
    fn a_queue_offloads_where_its_own_etf_does() {
        let read = |messages: &[Vec<u8>]| -> Vec<Discipline> {
            let each = messages
                .iter()
                .filter_map(|message| Discipline::read(message));
            each.collect()
        };
        let queue = |queue: u32| 0x0100_0000 + queue + 1;
        let disciplines = read(&[
            mqprio(2),
            etf(2, queue(1), TAI, 0, 150_000),
            etf(2, queue(3), TAI, ETF_OFFLOAD, 150_000),
            etf(3, ROOT, TAI, ETF_OFFLOAD, 150_000),
            etf(4, ROOT, TAI, 0, 150_000),
        ]);
        let offloading: Vec<(u32, u32)> = (2..6)
            .flat_map(|ifindex| (0..5).map(move |queue| (ifindex, queue)))
            .filter(|&(ifindex, queue)| offloads(&disciplines, ifindex, queue))
            .collect();
        assert_eq!(offloading, [(2, 3), (3, 0)]);
    }

    #[test]
    fn beside_taprio_no_launch_time_is_kept() {
        let mut messages = vec![etf(2, ROOT, TAI, 0, 150_000)];
        assert_eq!(found(&messages).len(), 1);
        messages.push(message(3, 0x0100_0000, ROOT, "taprio", &[]));
        assert_eq!(found(&messages), []);
    }

    #[test]
    fn the_tables_of_this_machine_are_read() {
        let queues = launch_queues().expect("the kernel's answer");
        assert!(queues.iter().all(|queues| queues.ifindex != 0));
        let here = egress_interface([127, 0, 0, 1].into(), None).expect("an answer");
        assert_eq!(
            here, None,
            "what stays here passes no interface of a network"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(message in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = Discipline::read(&message);
        }

        #[test]
        fn any_options_are_read_or_refused(
            kind in prop_oneof![Just("etf"), Just("mqprio"), Just("taprio"), Just("")],
            options in prop::collection::vec(any::<u8>(), 0..120),
            cut in 0usize..200,
        ) {
            let mut whole = message(2, 0x0100_0000, ROOT, kind, &options);
            whole.truncate(whole.len().saturating_sub(cut));
            if let Some(discipline) = Discipline::read(&whole) {
                let leaf = Discipline::read(&etf(2, 0x0100_0001, TAI, 0, 1)).expect("etf");
                let _ = keepers(&[discipline, leaf]);
            }
        }
    }
}
