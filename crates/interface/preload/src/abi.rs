//! Numbers and shapes of the kernel's interface that the `libc` crate does not have (Linux `include/uapi`).

use std::ffi::c_int;

/// `struct sock_txtime` of `linux/net_tstamp.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SockTxtime {
    /// The clock of the transmission times.
    pub clockid: c_int,
    /// `SOF_TXTIME_*`.
    pub flags: u32,
}

impl SockTxtime {
    /// As it lies in memory.
    pub fn bytes(&self) -> [u8; size_of::<Self>()] {
        let mut bytes = [0; size_of::<Self>()];
        bytes[..4].copy_from_slice(&self.clockid.to_ne_bytes());
        bytes[4..].copy_from_slice(&self.flags.to_ne_bytes());
        bytes
    }
}

/// All flags that there are: `SOF_TXTIME_FLAGS_MASK`.
pub const TXTIME_FLAGS: u32 = TXTIME_DEADLINE | TXTIME_REPORT_ERRORS;
/// `SOF_TXTIME_DEADLINE_MODE`: times are the latest, not the very instant.
pub const TXTIME_DEADLINE: u32 = 1;
/// `SOF_TXTIME_REPORT_ERRORS`: drops go to the error queue.
pub const TXTIME_REPORT_ERRORS: u32 = 2;

/// `SO_EE_ORIGIN_TIMESTAMPING` of `linux/errqueue.h`.
pub const EE_ORIGIN_TIMESTAMPING: u8 = 4;
/// `SO_EE_ORIGIN_TXTIME`.
pub const EE_ORIGIN_TXTIME: u8 = 6;
/// `SO_EE_CODE_TXTIME_INVALID_PARAM`: the time could not be met from the beginning.
pub const EE_TXTIME_INVALID_PARAM: u8 = 1;
/// `SO_EE_CODE_TXTIME_MISSED`: the time passed while the datagram waited.
pub const EE_TXTIME_MISSED: u8 = 2;
/// `SCM_TSTAMP_SND`: the time stamp is that of departure.
pub const TSTAMP_SND: u32 = 0;
/// `SCM_TSTAMP_SCHED`: that of reaching the queueing discipline.
pub const TSTAMP_SCHED: u32 = 1;

/// `SO_TIMESTAMPING_OLD` and `_NEW` of `asm/socket.h`; on 64-bit machines they differ in number alone.
pub const SO_TIMESTAMPING_OLD: c_int = 37;
/// See [`SO_TIMESTAMPING_OLD`].
pub const SO_TIMESTAMPING_NEW: c_int = 65;
/// A control message: the identifier that time stamps of this datagram carry (since Linux 6.13).
pub const SCM_TS_OPT_ID: c_int = 81;

/// `SOF_TIMESTAMPING_*` of `linux/net_tstamp.h`.
pub mod timestamping {
    /// `TX_HARDWARE`.
    pub const TX_HARDWARE: u32 = 1;
    /// `TX_SOFTWARE`: a stamp when the datagram leaves.
    pub const TX_SOFTWARE: u32 = 1 << 1;
    /// `SOFTWARE`: software stamps are to be told.
    pub const SOFTWARE: u32 = 1 << 4;
    /// `RAW_HARDWARE`: hardware stamps are to be told.
    pub const RAW_HARDWARE: u32 = 1 << 6;
    /// `OPT_ID`: stamps carry the number of their datagram.
    pub const OPT_ID: u32 = 1 << 7;
    /// `TX_SCHED`: a stamp when the datagram is queued.
    pub const TX_SCHED: u32 = 1 << 8;
    /// `TX_ACK`.
    pub const TX_ACK: u32 = 1 << 9;
    /// `OPT_CMSG`: addresses and interface come with stamps, too.
    pub const OPT_CMSG: u32 = 1 << 10;
    /// `OPT_TSONLY`: no copy of the datagram.
    pub const OPT_TSONLY: u32 = 1 << 11;
    /// `OPT_TX_SWHW`: a software stamp also where there is one of hardware.
    pub const OPT_TX_SWHW: u32 = 1 << 14;
    /// `TX_COMPLETION` (since Linux 6.15).
    pub const TX_COMPLETION: u32 = 1 << 18;
    /// What a control message of one datagram may set: `TX_RECORD_MASK`.
    pub const TX_RECORD: u32 = TX_HARDWARE | TX_SOFTWARE | TX_SCHED | TX_ACK | TX_COMPLETION;
}

/// `PACKET_TX_TIMESTAMP` of `linux/if_packet.h`: how packet sockets name an entry of the error queue.
pub const PACKET_TX_TIMESTAMP: c_int = 16;
/// `PACKET_QDISC_BYPASS`.
pub const PACKET_QDISC_BYPASS: c_int = 20;
/// `PACKET_VNET_HDR`: a header for offloads stands in front of each frame.
pub const PACKET_VNET_HDR: c_int = 15;
/// `UDP_NO_CHECK6_TX` of `linux/udp.h`.
pub const UDP_NO_CHECK6_TX: c_int = 101;
/// `UDP_SEGMENT`.
pub const UDP_SEGMENT: c_int = 103;
/// `IPV6_RECVERR` of `linux/in6.h`.
pub const IPV6_RECVERR: c_int = 25;

/// How many parts a message has. musl's `msg_iovlen` and `msg_controllen` are narrower than the kernel's; what stands
/// beside them is padding, which its programs need not set.
pub fn parts(header: &libc::msghdr) -> usize {
    header.msg_iovlen as _
}

/// Bytes of a message's control messages; 0 without a place for them.
pub fn control_length(header: &libc::msghdr) -> usize {
    match header.msg_control.is_null() {
        true => 0,
        false => header.msg_controllen as _,
    }
}

/// `cmsg_len`, which is as wide as `msg_controllen`.
pub fn message_length(field: &[u8; 8]) -> usize {
    match cfg!(target_env = "musl") {
        true => u64::from_ne_bytes(*field) as u32 as usize, // little-endian: the padding is behind it
        false => usize::from_ne_bytes(*field),
    }
}

/// `struct sock_extended_err` of `linux/errqueue.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedError {
    /// What the error is.
    pub errno: u32,
    /// Who reports it.
    pub origin: u8,
    /// More about it.
    pub code: u8,
    /// More about it.
    pub info: u32,
    /// More about it.
    pub data: u32,
}

impl ExtendedError {
    /// Its bytes.
    pub const SIZE: usize = 16;

    /// As it lies in memory; type and padding are zero.
    pub fn bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0..4].copy_from_slice(&self.errno.to_ne_bytes());
        bytes[4] = self.origin;
        bytes[6] = self.code;
        bytes[8..12].copy_from_slice(&self.info.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.data.to_ne_bytes());
        bytes
    }
}
