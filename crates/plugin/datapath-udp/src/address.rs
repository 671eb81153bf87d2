//! Socket addresses in the kernel's form. Not for name resolution or interface look-ups.

use std::fmt;
use std::mem;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// Room for an address of either family, as the kernel reads and writes it.
#[repr(C)]
#[derive(Clone, Copy)]
union Storage {
    family: libc::sa_family_t,
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

/// A socket address laid out for the kernel, converted once and used for every datagram.
#[derive(Clone, Copy)]
pub(crate) struct RawAddress {
    storage: Storage,
}

impl RawAddress {
    /// Bytes of room that the kernel may write a source address to.
    pub(crate) const CAPACITY: libc::socklen_t = mem::size_of::<Storage>() as libc::socklen_t;

    /// An address of family `AF_UNSPEC`: room to receive into, and what dissolves a UDP association.
    pub(crate) const fn unspecified() -> Self {
        // SAFETY: every field of the union is plain integers, for which all bits zero is a value.
        let storage = unsafe { mem::zeroed() };
        Self { storage }
    }

    /// How many bytes of this address the kernel has to read.
    pub(crate) fn length(&self) -> libc::socklen_t {
        // SAFETY: the storage is initialised in full by each constructor, and the family lies first in all forms.
        match libc::c_int::from(unsafe { self.storage.family }) {
            libc::AF_INET => mem::size_of::<libc::sockaddr_in>() as libc::socklen_t,
            _ => mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t,
        }
    }

    /// For system calls that read an address.
    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    /// For system calls that write an address of up to [`RawAddress::CAPACITY`] bytes.
    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    /// The address in Rust's form, or `None` when it is of neither IP family.
    pub(crate) fn to_socket_addr(self) -> Option<SocketAddr> {
        // SAFETY: all fields are plain integers, valid whatever the kernel has written; the storage is
        // initialised in full.
        unsafe {
            match libc::c_int::from(self.storage.family) {
                libc::AF_INET => {
                    let v4 = self.storage.v4;
                    let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                    Some(SocketAddrV4::new(ip, u16::from_be(v4.sin_port)).into())
                }
                libc::AF_INET6 => {
                    let v6 = self.storage.v6;
                    let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                    Some(
                        SocketAddrV6::new(
                            ip,
                            u16::from_be(v6.sin6_port),
                            v6.sin6_flowinfo,
                            v6.sin6_scope_id,
                        )
                        .into(),
                    )
                }
                _ => None,
            }
        }
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let mut raw = Self::unspecified();
        match address {
            SocketAddr::V4(v4) => {
                raw.storage.v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr {
                        s_addr: u32::from(*v4.ip()).to_be(),
                    },
                    sin_zero: [0; 8],
                };
            }
            SocketAddr::V6(v6) => {
                raw.storage.v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr {
                        s6_addr: v6.ip().octets(),
                    },
                    sin6_scope_id: v6.scope_id(),
                };
            }
        }
        raw
    }
}

impl fmt::Debug for RawAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_socket_addr().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back_as_it_went_in() {
        for text in ["192.0.2.7:4789", "[2001:db8::1]:65535", "[fe80::2%7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let raw = RawAddress::from(address);
            assert_eq!(raw.to_socket_addr(), Some(address));
            assert_eq!(raw.length(), if address.is_ipv4() { 16 } else { 28 });
        }
    }

    #[test]
    fn an_unspecified_family_is_no_address() {
        assert_eq!(RawAddress::unspecified().to_socket_addr(), None);
    }
}
