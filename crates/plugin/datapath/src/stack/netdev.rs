//! What devices do for AF_XDP and for XDP programs, as the kernel's family `netdev` of generic netlink tells it
//! (Linux 6.3, `Documentation/netlink/specs/netdev.yaml`).

use std::io;

use super::launch::{find, u16_at, u32_at};
use super::netlink::{NLMSG_HEADER, Netlink};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY` and attributes of `linux/genetlink.h`.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NETDEV_CMD_DEV_GET` and attributes of `linux/netdev.h`.
const GET_DEVICE: u8 = 1;
const IFINDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
const XSK_FEATURES: u16 = 6;
/// `NETDEV_XDP_ACT_NDO_XMIT`.
const TAKES_REDIRECTED: u64 = 1 << 2;
/// `NETDEV_XSK_FLAGS_TX_LAUNCH_TIME_FIFO` (Linux 6.14).
const LAUNCH_TIME_FIFO: u64 = 1 << 2;
/// Length of `struct genlmsghdr`: command, version, two octets of nothing.
const GENERIC_HEADER: usize = 4;

/// Whether an interface of this thread's network namespace sends AF_XDP's frames at the launch times in their
/// metadata (Linux `xsk-tx-metadata.rst`). Its queues may have to be set up for that besides: see
/// [`offloading_queues`](super::offloading_queues). False where the kernel is too old to say.
///
/// # Errors
/// The kernel's.
pub fn xsk_launch_time(ifindex: u32) -> io::Result<bool> {
    let features = features(ifindex, XSK_FEATURES)?;
    Ok(features.is_some_and(|features| features & LAUNCH_TIME_FIFO != 0))
}

/// Whether frames that an XDP program redirects to an interface of this thread's network namespace leave by it: what
/// the kernel itself looks at before it drops them (`__xdp_enqueue` in kernel/bpf/devmap.c). `None` where the kernel
/// is too old to say (Linux 6.3), or has no such interface.
///
/// # Errors
/// The kernel's.
pub fn takes_redirected(ifindex: u32) -> io::Result<Option<bool>> {
    let features = features(ifindex, XDP_FEATURES)?;
    Ok(features.map(|features| features & TAKES_REDIRECTED != 0))
}

/// Features of an interface, none of them where it has no such attribute.
fn features(ifindex: u32, attribute: u16) -> io::Result<Option<u64>> {
    let mut netlink = Netlink::open_generic()?;
    let mut family = None;
    netlink.dump(CONTROLLER, &request(GET_FAMILY), |message| {
        family = family.or(read_family(message));
    })?;
    let Some(family) = family else {
        return Ok(None);
    };
    let mut features = None;
    netlink.dump(family, &request(GET_DEVICE), |message| {
        if let Some((of, found)) = read_device(message, attribute)
            && of == ifindex
        {
            features = Some(found);
        }
    })?;
    Ok(features)
}

/// A generic header of version 1.
fn request(command: u8) -> [u8; GENERIC_HEADER] {
    [command, 1, 0, 0]
}

/// The number of the family `netdev`, if the message is about it.
fn read_family(message: &[u8]) -> Option<u16> {
    let attributes = message.get(NLMSG_HEADER + GENERIC_HEADER..)?;
    (find(attributes, FAMILY_NAME)? == b"netdev\0").then_some(())?;
    u16_at(find(attributes, FAMILY_ID)?, 0)
}

/// An interface and its features by an attribute.
fn read_device(message: &[u8], attribute: u16) -> Option<(u32, u64)> {
    let attributes = message.get(NLMSG_HEADER + GENERIC_HEADER..)?;
    let ifindex = u32_at(find(attributes, IFINDEX)?, 0)?;
    let features = find(attributes, attribute).and_then(|value| value.first_chunk());
    Some((ifindex, features.copied().map_or(0, u64::from_ne_bytes)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = (payload.len() as u16 + 4).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn message(attributes: &[Vec<u8>]) -> Vec<u8> {
        [vec![0; NLMSG_HEADER + GENERIC_HEADER], attributes.concat()].concat()
    }

    #[test]
    fn the_family_and_the_features_are_found() {
        let named = |name: &[u8]| {
            let id = attribute(FAMILY_ID, &27u16.to_ne_bytes());
            read_family(&message(&[id, attribute(FAMILY_NAME, name)]))
        };
        assert_eq!(named(b"netdev\0"), Some(27));
        assert_eq!(named(b"nlctrl\0"), None);
        let index = attribute(IFINDEX, &7u32.to_ne_bytes());
        let features = attribute(XSK_FEATURES, &6u64.to_ne_bytes());
        let device = message(&[index.clone(), features]);
        assert_eq!(read_device(&device, XSK_FEATURES), Some((7, 6)));
        assert_eq!(read_device(&message(&[index]), XSK_FEATURES), Some((7, 0)));
    }

    #[test]
    fn the_kernel_knows_that_a_loopback_keeps_no_launch_times() {
        assert!(!xsk_launch_time(1).expect("an answer"));
    }

    #[test]
    fn the_kernel_knows_that_a_loopback_takes_no_frames_of_programs_and_nothing_of_what_there_is_not()
     {
        assert_ne!(takes_redirected(1).expect("an answer"), Some(true));
        assert_eq!(takes_redirected(u32::MAX).expect("an answer"), None);
    }

    proptest! {
        #[test]
        fn hostile_answers_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..96)) {
            let _ = read_family(&bytes);
            let _ = read_device(&bytes, XDP_FEATURES);
        }
    }
}
