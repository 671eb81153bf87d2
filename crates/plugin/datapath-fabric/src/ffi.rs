//! The functions of the shim (`shim/shim.c`), and what they pass.

use std::ffi::{c_char, c_int, c_void};

/// An endpoint with what belongs to it.
#[repr(C)]
pub(crate) struct Fabric {
    _opaque: [u8; 0],
}

/// What is asked of a provider.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) provider: *const c_char,
    pub(crate) domain: *const c_char,
    pub(crate) address: *const c_void,
    pub(crate) address_length: u64,
    pub(crate) receives: u64,
    pub(crate) sends: u64,
    pub(crate) format: u32,
}

/// What a provider is and has.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traits {
    pub(crate) provider: [u8; 64],
    pub(crate) domain: [u8; 64],
    /// Most bytes that are taken without being kept.
    pub(crate) inject: u64,
    /// Of a message.
    pub(crate) longest: u64,
    pub(crate) receives: u64,
    pub(crate) sends: u64,
    pub(crate) format: u32,
    /// Memory has to be registered.
    pub(crate) registered: u8,
    /// There is a descriptor to wait for.
    pub(crate) waits: u8,
}

impl Traits {
    pub(crate) const NONE: Self = Self {
        provider: [0; 64],
        domain: [0; 64],
        inject: 0,
        longest: 0,
        receives: 0,
        sends: 0,
        format: 0,
        registered: 0,
        waits: 0,
    };
}

/// What has ended.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) context: *mut c_void,
    pub(crate) length: u64,
    /// 0, or as errno.
    pub(crate) error: i32,
    /// A receive, not a send.
    pub(crate) received: u32,
}

/// What libfabric wants for itself while an operation is under way.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context(pub(crate) [usize; 8]);

/// Most completions that one call reads.
pub(crate) const BURST: usize = 16;

/// `sockaddr_in`.
pub(crate) const FORMAT_V4: u32 = 2;
/// `sockaddr_in6`.
pub(crate) const FORMAT_V6: u32 = 3;
/// A text.
pub(crate) const FORMAT_TEXT: u32 = 9;

unsafe extern "C" {
    pub(crate) fn takt_fabric_probe(request: *const Request, traits: *mut Traits) -> c_int;
    pub(crate) fn takt_fabric_open(
        request: *const Request,
        memory: *mut c_void,
        length: u64,
        traits: *mut Traits,
        opened: *mut *mut Fabric,
        step: *mut *const c_char,
    ) -> c_int;
    pub(crate) fn takt_fabric_close(fabric: *mut Fabric);
    pub(crate) fn takt_fabric_name(fabric: *mut Fabric, address: *mut c_void, room: u64) -> c_int;
    pub(crate) fn takt_fabric_fd(fabric: *const Fabric) -> c_int;
    pub(crate) fn takt_fabric_try_wait(fabric: *mut Fabric) -> c_int;
    pub(crate) fn takt_fabric_insert(
        fabric: *mut Fabric,
        address: *const c_void,
        peer: *mut u64,
    ) -> c_int;
    pub(crate) fn takt_fabric_remove(fabric: *mut Fabric, peer: u64) -> c_int;
    pub(crate) fn takt_fabric_inject(
        fabric: *mut Fabric,
        peer: u64,
        data: *const c_void,
        length: u64,
    ) -> i64;
    pub(crate) fn takt_fabric_send(
        fabric: *mut Fabric,
        peer: u64,
        data: *const c_void,
        length: u64,
        context: *mut c_void,
        more: c_int,
    ) -> i64;
    pub(crate) fn takt_fabric_post(
        fabric: *mut Fabric,
        data: *mut c_void,
        length: u64,
        context: *mut c_void,
        more: c_int,
    ) -> i64;
    pub(crate) fn takt_fabric_cancel(fabric: *mut Fabric, context: *mut c_void);
    pub(crate) fn takt_fabric_read(fabric: *mut Fabric, done: *mut Done, room: u64) -> i64;
    pub(crate) fn takt_fabric_error(error: c_int) -> *const c_char;
    pub(crate) fn takt_fabric_version() -> u32;
    #[cfg(test)]
    pub(crate) fn takt_fabric_sizes(sizes: *mut u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_are_those_of_the_shim() {
        let mut sizes = [0; 8];
        // SAFETY: the shim writes eight numbers.
        unsafe { takt_fabric_sizes(sizes.as_mut_ptr()) };
        let ours = [
            size_of::<Request>() as u64,
            size_of::<Traits>() as u64,
            size_of::<Done>() as u64,
            BURST as u64,
            size_of::<Context>() as u64,
            FORMAT_V4.into(),
            FORMAT_V6.into(),
            FORMAT_TEXT.into(),
        ];
        assert_eq!(sizes, ours);
    }
}
