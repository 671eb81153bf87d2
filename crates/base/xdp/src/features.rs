//! What a device's driver can do with frames of XDP programs, as the kernel says by the generic netlink family `netdev`
//! (Documentation/netlink/specs/netdev.yaml; since Linux 6.3).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `NLM_F_REQUEST`, of linux/netlink.h.
const REQUEST: u16 = 1;
/// `NLMSG_ERROR`.
const ERROR: u16 = 2;
/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME`, of linux/genetlink.h.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
/// `NETDEV_CMD_DEV_GET`, `NETDEV_A_DEV_IFINDEX` and `NETDEV_A_DEV_XDP_FEATURES`, of linux/netdev.h.
const GET_DEVICE: u8 = 1;
const IFINDEX: u16 = 1;
const XDP_FEATURES: u16 = 3;
/// `NETDEV_XDP_ACT_NDO_XMIT`.
const TAKES_REDIRECTED: u64 = 1 << 2;
/// `struct nlmsghdr` and `struct genlmsghdr`.
const HEADERS: usize = 16 + 4;

/// Asks the kernel what drivers can do, in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Features {
    socket: OwnedFd,
    /// The number of the family `netdev`.
    family: u16,
}

impl Features {
    /// Opens it; `None` where the kernel has nothing to say, being older than 6.3.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open() -> io::Result<Option<Self>> {
        // SAFETY: plain call; a descriptor that is not negative is new and owned by nobody else.
        let socket = match unsafe {
            libc::socket(
                libc::AF_NETLINK,
                libc::SOCK_RAW | libc::SOCK_CLOEXEC,
                libc::NETLINK_GENERIC,
            )
        } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: as above.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let control = Self {
            socket,
            family: CONTROL,
        };
        let family = control.ask(GET_FAMILY, FAMILY_NAME, b"netdev\0", FAMILY_ID);
        let bytes = match family {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            family => family?,
        };
        let family = bytes.and_then(|bytes| Some(u16::from_ne_bytes(bytes.try_into().ok()?)));
        Ok(family.map(|family| Self { family, ..control }))
    }

    /// Whether frames that an XDP program redirects to the device leave by it: what the kernel itself looks at before it
    /// drops them (`__xdp_enqueue` in kernel/bpf/devmap.c).
    ///
    /// # Errors
    /// The kernel's, as where there is no such device.
    pub fn takes_redirected(&self, ifindex: u32) -> io::Result<bool> {
        let features = self.ask(GET_DEVICE, IFINDEX, &ifindex.to_ne_bytes(), XDP_FEATURES)?;
        let features = features.and_then(|bytes| Some(u64::from_ne_bytes(bytes.try_into().ok()?)));
        Ok(features.is_some_and(|features| features & TAKES_REDIRECTED != 0))
    }

    /// One request with one attribute, and one attribute of the answer.
    fn ask(
        &self,
        command: u8,
        attribute: u16,
        value: &[u8],
        wanted: u16,
    ) -> io::Result<Option<Vec<u8>>> {
        let length = (HEADERS + 4 + value.len()) as u32;
        let mut request = Vec::with_capacity(64);
        request.extend(length.to_ne_bytes());
        request.extend(self.family.to_ne_bytes());
        request.extend(REQUEST.to_ne_bytes());
        // Sequence and port: one question at a time, and the kernel knows whose.
        request.extend([0; 8]);
        request.extend([command, 1, 0, 0]);
        request.extend((4 + value.len() as u16).to_ne_bytes());
        request.extend(attribute.to_ne_bytes());
        request.extend(value);
        // SAFETY: the bytes are readable for their length.
        let sent = unsafe {
            libc::send(
                self.socket.as_raw_fd(),
                request.as_ptr().cast(),
                request.len(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = [0_u8; 8192];
        // SAFETY: the bytes are writable for their length.
        let got = unsafe {
            libc::recv(
                self.socket.as_raw_fd(),
                answer.as_mut_ptr().cast(),
                answer.len(),
                0,
            )
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        found(&answer[..got], wanted)
    }
}

/// The value of the attribute `wanted` of an answer.
fn found(answer: &[u8], wanted: u16) -> io::Result<Option<Vec<u8>>> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "a short answer of netlink");
    let word = |at: usize| {
        let bytes = answer.get(at..at + 2)?.try_into().ok()?;
        Some(u16::from_ne_bytes(bytes))
    };
    if word(4).ok_or_else(short)? == ERROR {
        let number = answer.get(16..20).ok_or_else(short)?;
        let number = i32::from_ne_bytes(number.try_into().map_err(|_| short())?);
        return Err(io::Error::from_raw_os_error(-number));
    }
    let mut at = HEADERS;
    while let (Some(length), Some(kind)) = (word(at), word(at + 2)) {
        let length = usize::from(length);
        if length < 4 {
            break;
        }
        if kind == wanted {
            let value = answer.get(at + 4..at + length).ok_or_else(short)?;
            return Ok(Some(value.to_vec()));
        }
        at += length.next_multiple_of(4);
    }
    Ok(None)
}
