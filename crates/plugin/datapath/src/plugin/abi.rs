//! The C structures of a plugin, version 1: `include/takt_datapath.h` in Rust. Their layouts are compared by a test.

use std::ffi::{c_char, c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Version of the table. A plugin of another version is refused.
pub const ABI_VERSION: u32 = 1;

/// `takt_dp_address`: an IP address and a UDP port.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// 4 or 6.
    pub family: u8,
    /// 0.
    pub reserved: u8,
    /// Host order.
    pub port: u16,
    /// Of a link-local IPv6 address: the interface.
    pub scope: u32,
    /// The first 4 of an IPv4 address.
    pub ip: [u8; 16],
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        let mut ip = [0; 16];
        let (family, scope) = match address {
            SocketAddr::V4(v4) => {
                ip[..4].copy_from_slice(&v4.ip().octets());
                (4, 0)
            }
            SocketAddr::V6(v6) => {
                ip = v6.ip().octets();
                (6, v6.scope_id())
            }
        };
        Self {
            family,
            reserved: 0,
            port: address.port(),
            scope,
            ip,
        }
    }
}

impl Address {
    /// As Rust has it. `None`: of no family.
    #[inline]
    pub fn read(&self) -> Option<SocketAddr> {
        match self.family {
            4 => {
                let [a, b, c, d, ..] = self.ip;
                let ip = IpAddr::V4(Ipv4Addr::new(a, b, c, d));
                Some(SocketAddr::new(ip, self.port))
            }
            6 => {
                let ip = Ipv6Addr::from(self.ip);
                Some(SocketAddrV6::new(ip, self.port, 0, self.scope).into())
            }
            _ => None,
        }
    }
}

/// `takt_dp_option`: texts that end with a zero.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// Its name.
    pub key: *const c_char,
    /// What was written.
    pub value: *const c_char,
}

/// `enum takt_dp_failure_kind`: why something cannot be opened or connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum FailureKind {
    /// The process lacks a privilege.
    Privilege = 1,
    /// The address or port cannot be bound.
    Bind = 2,
    /// Not offered here.
    Unavailable = 3,
    /// A call failed: `os_error`, or the text where that is 0.
    System = 4,
    /// No route leads there through this datapath.
    NoRoute = 5,
    /// The port's table of peers is full: `limit`.
    TooManyPeers = 6,
    /// Of frames: the port has no interface of its own.
    NoFrames = 7,
    /// Of frames: not by this interface.
    OtherInterface = 8,
    /// Of frames: the kernel refuses, `os_error`.
    Link = 9,
    /// The peer is of another address family than the port.
    AddressFamily = 10,
}

/// Octets of [`Failure::text`].
pub(super) const TEXT: usize = 480;

/// `takt_dp_failure`: filled by a call that fails.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Failure {
    /// A [`FailureKind`] as a number.
    pub kind: i32,
    /// An `errno`, where there is one.
    pub os_error: i32,
    /// How many there may be, where that is the matter.
    pub limit: u64,
    /// For people, ended by a zero: what is wrong, with the value and the remedy.
    pub text: [u8; TEXT],
}

impl Default for Failure {
    fn default() -> Self {
        Self {
            kind: 0,
            os_error: 0,
            limit: 0,
            text: [0; TEXT],
        }
    }
}

/// Bits of [`Description::flags`].
pub(super) const ACCELERATED: u32 = 1;
pub(super) const NEEDS_POLLING: u32 = 2;
pub(super) const LAUNCH_TIME: u32 = 4;
pub(super) const ZERO_COPY: u32 = 8;
/// Of plugins since the table has `longest_received`.
pub(super) const NO_UDP: u32 = 16;
pub(super) const OWN_ADDRESSES: u32 = 32;

/// `takt_dp_capabilities`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Description {
    /// 1 accelerated, 2 needs polling, 4 keeps launch times, 8 copies nothing, 16 no UDP on the wire, 32 addresses of its own.
    pub flags: u32,
    /// 0.
    pub reserved: u32,
    /// One line for people, ended by a zero.
    pub detail: [u8; TEXT],
}

/// `takt_dp_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The lane, from 0.
    pub lane: u16,
    /// How many there are.
    pub lanes: u16,
    /// 0.
    pub reserved: u32,
    /// Where to bind.
    pub bind: Address,
}

/// `takt_dp_datagram`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Datagram {
    /// Who sent it.
    pub source: Address,
    /// The local UDP port that it was for.
    pub destination_port: u16,
    /// 0.
    pub reserved: [u16; 3],
    /// Its payload, until the callback returns.
    pub payload: *const u8,
    /// Octets of it.
    pub length: usize,
}

/// `takt_dp_counters`, as [`PortCounters`](crate::PortCounters).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)] // as those
pub struct Counters {
    pub tx_datagrams: u64,
    pub tx_bytes: u64,
    pub tx_errors: u64,
    pub rx_datagrams: u64,
    pub rx_bytes: u64,
    pub rx_dropped: u64,
    pub rx_invalid: u64,
}

/// What `reserve` says instead of 0, `enum takt_dp_not_reserved`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum NotReserved {
    /// All frames are in flight.
    WouldBlock = 1,
    /// The next hop is not resolved.
    Unresolved = 2,
    /// The handle names nobody.
    UnknownPeer = 3,
}

/// As `commit` has it where there is no launch time.
pub const LAUNCH_NONE: i64 = i64::MIN;

/// `takt_dp_deliver`.
pub type Deliver = unsafe extern "C" fn(context: *mut c_void, datagram: *const Datagram);

/// `takt_datapath_plugin`: what a plugin exports. Functions that may be left out are options.
///
/// Every function of a datapath may be called by any thread; those of a port by one thread at a time, which may change.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// [`ABI_VERSION`].
    pub abi: u32,
    /// Octets of the table as the plugin knows it: later versions of the same number add at the end.
    pub size: u32,
    /// The technology, as in the file's name: lower-case letters, digits and hyphens, 15 at most.
    pub name: *const c_char,
    /// The plugin's own version, for people.
    pub version: *const c_char,
    /// Finds out what is there with these options. 0, or not 0 and the failure is filled.
    pub create:
        Option<unsafe extern "C" fn(*const Opt, usize, *mut *mut c_void, *mut Failure) -> c_int>,
    /// Ends it, after all of its ports.
    pub destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    /// As [`Datapath::capabilities`](crate::Datapath::capabilities).
    pub capabilities: Option<unsafe extern "C" fn(*mut c_void, *mut Description)>,
    /// As [`Datapath::open`](crate::Datapath::open). 0, or not 0 and the failure is filled.
    pub open: Option<
        unsafe extern "C" fn(*mut c_void, *const Request, *mut *mut c_void, *mut Failure) -> c_int,
    >,
    /// Ends a port.
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
    /// As [`Port::local`](crate::Port::local).
    pub local: Option<unsafe extern "C" fn(*mut c_void, *mut Address)>,
    /// As [`Port::connect`](crate::Port::connect), and it must not wait.
    pub connect:
        Option<unsafe extern "C" fn(*mut c_void, *const Address, *mut u32, *mut Failure) -> c_int>,
    /// As [`Port::connect_link`](crate::Port::connect_link); interface 0: the port's own. May be left out: no frames.
    pub connect_link:
        Option<unsafe extern "C" fn(*mut c_void, u32, *mut u32, *mut Failure) -> c_int>,
    /// As [`Port::disconnect`](crate::Port::disconnect).
    pub disconnect: Option<unsafe extern "C" fn(*mut c_void, u32)>,
    /// As [`Port::reaches`](crate::Port::reaches). May be left out: always.
    pub reaches: Option<unsafe extern "C" fn(*mut c_void, u32) -> c_int>,
    /// As [`Port::max_payload`](crate::Port::max_payload).
    pub max_payload: Option<unsafe extern "C" fn(*mut c_void, u32) -> usize>,
    /// As [`Port::reserve`](crate::Port::reserve). 0, or a [`NotReserved`].
    pub reserve: Option<unsafe extern "C" fn(*mut c_void, u32, *mut u32) -> c_int>,
    /// As [`Port::payload`](crate::Port::payload), with its length.
    pub payload: Option<unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> *mut u8>,
    /// As [`Port::commit`](crate::Port::commit): frame, length, class, launch time or [`LAUNCH_NONE`].
    pub commit: Option<unsafe extern "C" fn(*mut c_void, u32, usize, u8, i64)>,
    /// As [`Port::keeps_launch_time`](crate::Port::keeps_launch_time). May be left out: never.
    pub keeps_launch_time: Option<unsafe extern "C" fn(*mut c_void, u32, u8) -> c_int>,
    /// As [`Port::cancel`](crate::Port::cancel).
    pub cancel: Option<unsafe extern "C" fn(*mut c_void, u32)>,
    /// As [`Port::flush`](crate::Port::flush).
    pub flush: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    /// As [`Port::receive`](crate::Port::receive).
    pub receive: Option<unsafe extern "C" fn(*mut c_void, usize, Deliver, *mut c_void) -> usize>,
    /// As [`Port::receive_costs_syscall`](crate::Port::receive_costs_syscall).
    pub receive_costs_syscall: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    /// As [`Port::wait_fds`](crate::Port::wait_fds): a single one, the same for the port's whole life.
    pub wait_fd: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    /// As [`Port::counters`](crate::Port::counters).
    pub counters: Option<unsafe extern "C" fn(*mut c_void, *mut Counters)>,
    /// As [`Port::longest_received`](crate::Port::longest_received). May be left out, or not be in the table: any.
    pub longest_received: Option<unsafe extern "C" fn(*mut c_void) -> usize>,
    /// As [`Health::fault`](crate::Health::fault), of a datapath. 0, or not 0 and the failure's text is filled. May be
    /// left out, or not be in the table: it is not known to fail.
    pub fault: Option<unsafe extern "C" fn(*mut c_void, *mut Failure) -> c_int>,
}

impl Table {
    /// Octets of the first tables of this version.
    pub(super) const FIRST: usize = std::mem::offset_of!(Table, longest_received);
}

// SAFETY: constant texts and functions, which the contract has callable from any thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

/// A text that ends with a zero, as much of it as has room.
pub(super) fn write_text(to: &mut [u8; TEXT], text: &str) {
    let mut end = text.len().min(TEXT - 1);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    to[..end].copy_from_slice(&text.as_bytes()[..end]);
    to[end] = 0;
}

/// The same, read: what is no text becomes one.
pub(super) fn read_text(from: &[u8; TEXT]) -> String {
    let end = from.iter().position(|octet| *octet == 0).unwrap_or(TEXT);
    let text = String::from_utf8_lossy(&from[..end]);
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
