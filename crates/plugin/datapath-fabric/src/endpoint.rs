//! An endpoint of libfabric with its memory: what can be said of it without unsafe code.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use takt_datapath::OpenError;

use crate::arena::Arena;
use crate::config::{FabricConfig, Provider, refused};
use crate::ffi::{self, BURST, Context, Done, Fabric, Request, Traits};

/// Addresses as libfabric has them.
pub(crate) enum Address {
    V4(libc::sockaddr_in),
    V6(libc::sockaddr_in6),
    /// The name of a region of shared memory.
    Name(CString),
}

impl Address {
    pub(crate) fn new(provider: Provider, address: SocketAddr) -> Self {
        if !provider.has_ip_addresses() {
            return Self::Name(region_name(address));
        }
        match address {
            SocketAddr::V4(address) => Self::V4(libc::sockaddr_in {
                sin_family: libc::AF_INET as _,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(address.ip().octets()),
                },
                sin_zero: [0; 8],
            }),
            SocketAddr::V6(address) => Self::V6(libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as _,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr {
                    s6_addr: address.ip().octets(),
                },
                sin6_scope_id: address.scope_id(),
            }),
        }
    }

    fn raw(&self) -> (*const c_void, usize, u32) {
        match self {
            Self::V4(address) => (
                (&raw const *address).cast(),
                size_of_val(address),
                ffi::FORMAT_V4,
            ),
            Self::V6(address) => (
                (&raw const *address).cast(),
                size_of_val(address),
                ffi::FORMAT_V6,
            ),
            Self::Name(name) => (
                name.as_ptr().cast(),
                name.as_bytes_with_nul().len(),
                ffi::FORMAT_TEXT,
            ),
        }
    }
}

/// The region of a port in shared memory: addresses are those of a network namespace, regions are not.
fn region_name(address: SocketAddr) -> CString {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata("/proc/thread-self/ns/net").map_or(0, |meta| meta.ino());
    let text: String = address
        .to_string()
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() || letter == '.' {
                letter
            } else {
                '_'
            }
        })
        .collect();
    CString::new(format!("takt-{namespace}-{text}")).unwrap_or_default()
}

fn region_file(name: &CStr) -> String {
    format!("/dev/shm/{}", name.to_string_lossy())
}

/// Whether a region is there, and nobody else's: names can be foreseen, and whoever has made one, or may write to it, would have
/// the provider follow what stands in it.
///
/// # Errors
/// As errno: `ENOENT` where there is none, `EACCES` where it is another's.
fn look_at_region(name: &CStr) -> Result<(), i32> {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: no arguments and no failure.
    let user = unsafe { libc::geteuid() };
    match std::fs::symlink_metadata(region_file(name)) {
        Ok(meta) if meta.is_file() && meta.uid() == user && meta.mode() & 0o022 == 0 => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(libc::ENOENT),
        _ => Err(libc::EACCES),
    }
}

/// What a field of the shim's says.
pub(crate) fn text(field: &[u8]) -> &str {
    CStr::from_bytes_until_nul(field)
        .ok()
        .and_then(|text| text.to_str().ok())
        .unwrap_or("?")
}

/// libfabric's words for an error.
pub(crate) fn words(error: i32) -> String {
    // SAFETY: gives a text that stays for each number.
    let words = unsafe { CStr::from_ptr(ffi::takt_fabric_error(error)) };
    words.to_string_lossy().into_owned()
}

/// The library's version.
pub(crate) fn version() -> (u32, u32) {
    // SAFETY: gives a number.
    let version = unsafe { ffi::takt_fabric_version() };
    (version >> 16, version & 0xffff)
}

fn request(
    layers: &CStr,
    domain: Option<&CStr>,
    config: &FabricConfig,
    address: (*const c_void, usize, u32),
) -> Request {
    Request {
        provider: layers.as_ptr(),
        domain: domain.map_or(std::ptr::null(), CStr::as_ptr),
        address: address.0,
        address_length: address.1 as u64,
        receives: config.receives as u64,
        sends: config.sends as u64,
        format: address.2,
    }
}

fn domain(config: &FabricConfig) -> Option<CString> {
    let domain = config.domain.as_deref()?;
    CString::new(domain).ok()
}

/// What a provider has; the text says why it is not there.
pub(crate) fn probe(provider: Provider, config: &FabricConfig) -> Result<Traits, String> {
    let domain = domain(config);
    let mut traits = Traits::NONE;
    let mut result = 0;
    for layers in provider.layers() {
        // IPv4 or IPv6, whichever there is.
        let request = request(layers, domain.as_deref(), config, (std::ptr::null(), 0, 0));
        // SAFETY: both are the shim's structures, and what the request points to lives as long.
        result = unsafe { ffi::takt_fabric_probe(&raw const request, &raw mut traits) };
        if result == 0 {
            return Ok(traits);
        }
    }
    Err(match &config.domain {
        Some(domain) => format!("{} with domain {domain:?}", words(result)),
        None => words(result),
    })
}

/// What came of handing something over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It has it.
    Taken,
    /// Not now.
    Later,
    /// Never, for this reason.
    Refused,
}

impl Outcome {
    fn of(result: i64) -> Self {
        match result {
            0 => Self::Taken,
            again if again == -i64::from(libc::EAGAIN) => Self::Later,
            _ => Self::Refused,
        }
    }
}

/// Something that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    /// Which frame.
    pub(crate) frame: usize,
    /// Bytes of a received message.
    pub(crate) length: usize,
    pub(crate) failed: bool,
    /// No message had it.
    pub(crate) cancelled: bool,
}

/// An endpoint.
#[derive(Debug)]
pub(crate) struct Endpoint {
    provider: Provider,
    /// `None`: closed.
    fabric: Option<NonNull<Fabric>>,
    /// libfabric's, one for each frame.
    contexts: Box<[Context]>,
    pub(crate) arena: Arena,
    /// Nothing ends or arrives any more: what has is not told.
    pub(crate) dead: bool,
    done: [Done; BURST],
}

// SAFETY: what is pointed to belongs to this alone, and libfabric does not care which thread calls.
unsafe impl Send for Endpoint {}

/// Opens an endpoint over the memory of its frames.
fn raise(
    provider: Provider,
    config: &FabricConfig,
    bind: SocketAddr,
    arena: &Arena,
) -> Result<(NonNull<Fabric>, Traits), OpenError> {
    let address = Address::new(provider, bind);
    let domain = domain(config);
    let (memory, length) = arena.whole();
    let mut traits = Traits::NONE;
    let mut fabric = std::ptr::null_mut();
    let mut step: *const c_char = std::ptr::null();
    let mut result = -libc::ENODATA;
    if let Address::Name(name) = &address {
        // Of somebody who was killed, for the number is ours. Others may have mapped the
        // file: it must not change under them.
        let _ = std::fs::remove_file(region_file(name));
        if look_at_region(name) == Err(libc::EACCES) {
            return Err(OpenError::Privilege(format!(
                "{} is another user's: remove it",
                region_file(name)
            )));
        }
    }
    let one = one_by_one(provider);
    for layers in provider.layers() {
        let request = request(layers, domain.as_deref(), config, address.raw());
        // SAFETY: structures of the shim, places to be written, and memory that outlives the endpoint.
        result = unsafe {
            ffi::takt_fabric_open(
                &raw const request,
                memory.cast(),
                length as u64,
                &raw mut traits,
                &raw mut fabric,
                &raw mut step,
            )
        };
        if result != -libc::ENODATA {
            break;
        }
    }
    drop(one);
    match NonNull::new(fabric) {
        Some(fabric) if result == 0 => Ok((fabric, traits)),
        _ => {
            let step = if step.is_null() {
                "open"
            } else {
                // SAFETY: one of the shim's texts.
                unsafe { CStr::from_ptr(step) }.to_str().unwrap_or("open")
            };
            Err(failure(provider, bind, length, step, -result))
        }
    }
}

impl Endpoint {
    /// # Errors
    /// [`OpenError`].
    pub(crate) fn open(
        provider: Provider,
        config: &FabricConfig,
        bind: SocketAddr,
    ) -> Result<Self, OpenError> {
        let frames = config.receives + config.sends;
        let arena = Arena::new(frames, config.frame_size).map_err(|source| OpenError::System {
            action: format!("cannot map {frames} frames of {} bytes", config.frame_size),
            source,
        })?;
        let (fabric, traits) = raise(provider, config, bind, &arena)?;
        let opened = Self {
            provider,
            fabric: Some(fabric),
            contexts: vec![Context([0; 8]); frames].into_boxed_slice(),
            arena,
            dead: false,
            done: [Done {
                context: std::ptr::null_mut(),
                length: 0,
                error: 0,
                received: 0,
            }; BURST],
        };
        if (traits.longest as usize) < opened.arena.message() {
            return Err(refused(format!(
                "frame_size = {}: {} carries at most {}",
                config.frame_size,
                text(&traits.provider),
                traits.longest
            )));
        }
        Ok(opened)
    }

    /// Closes it: all connections end, and nothing that was handed over is anybody's but ours.
    #[cold]
    pub(crate) fn close(&mut self) {
        if let Some(fabric) = self.fabric.take() {
            let _one = one_by_one(self.provider);
            // SAFETY: opened by `raise`, closed once; the memory is freed after this.
            unsafe { ffi::takt_fabric_close(fabric.as_ptr()) };
        }
    }

    /// Opens it again, over the same frames, after it was [closed](Self::close).
    ///
    /// # Errors
    /// [`OpenError`].
    #[cold]
    pub(crate) fn reopen(
        &mut self,
        config: &FabricConfig,
        bind: SocketAddr,
    ) -> Result<(), OpenError> {
        self.close();
        let (fabric, _) = raise(self.provider, config, bind, &self.arena)?;
        self.fabric = Some(fabric);
        self.dead = false;
        Ok(())
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.fabric.is_some() && !self.dead
    }

    /// The port number that the endpoint has.
    pub(crate) fn port(&self, bind: SocketAddr) -> Option<u16> {
        let fabric = self.fabric?;
        let mut name = [0_u8; 256];
        // SAFETY: so much room.
        let result = unsafe {
            ffi::takt_fabric_name(fabric.as_ptr(), name.as_mut_ptr().cast(), name.len() as u64)
        };
        let family = u16::from_ne_bytes([name[0], name[1]]);
        let expected = if bind.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        let port = u16::from_be_bytes([name[2], name[3]]);
        (result == 0 && i32::from(family) == expected && port != 0).then_some(port)
    }

    /// What to wait for, if there is something.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: reads a number.
        let fd = unsafe { ffi::takt_fabric_fd(self.fabric?.as_ptr()) };
        // SAFETY: the endpoint's own, which lives as long as it is borrowed.
        (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Whether the descriptor tells of whatever comes from now on, and nothing has come.
    pub(crate) fn may_wait(&mut self) -> bool {
        let Some(fabric) = self.fabric else {
            return true;
        };
        // SAFETY: the endpoint is open, and used by one thread.
        unsafe { ffi::takt_fabric_try_wait(fabric.as_ptr()) == 0 }
    }

    /// # Errors
    /// libfabric's, as errno. `ENOENT`: the peer's region is not there yet. It is not entered before, for the provider would take
    /// whatever is there when it sends.
    pub(crate) fn insert(&mut self, address: &Address) -> Result<u64, i32> {
        let fabric = self.fabric.ok_or(libc::ENETDOWN)?;
        if let Address::Name(name) = address {
            look_at_region(name)?;
        }
        let mut peer = 0;
        let _one = one_by_one(self.provider);
        // SAFETY: an address of the endpoint's format, and a place to be written.
        let result =
            unsafe { ffi::takt_fabric_insert(fabric.as_ptr(), address.raw().0, &raw mut peer) };
        if result == 0 { Ok(peer) } else { Err(-result) }
    }

    pub(crate) fn remove(&mut self, peer: u64) {
        let Some(fabric) = self.fabric else {
            return;
        };
        let _one = one_by_one(self.provider);
        // SAFETY: the endpoint is open, and used by one thread.
        unsafe { ffi::takt_fabric_remove(fabric.as_ptr(), peer) };
    }

    /// Sends a few bytes, which are copied.
    pub(crate) fn inject(&mut self, peer: u64, message: &[u8]) -> Outcome {
        let Some(fabric) = self.fabric else {
            return Outcome::Later;
        };
        // SAFETY: the bytes are read before it returns.
        Outcome::of(unsafe {
            ffi::takt_fabric_inject(
                fabric.as_ptr(),
                peer,
                message.as_ptr().cast(),
                message.len() as u64,
            )
        })
    }

    /// Sends the first `length` bytes of a frame's message; `more` follows at once.
    ///
    /// Not injected, however short: TCP's provider would take any number, of which none ends.
    ///
    /// # Safety
    /// Nobody writes to a frame that is taken before it has [ended](Self::read).
    #[inline]
    pub(crate) unsafe fn send(
        &mut self,
        peer: u64,
        frame: usize,
        length: usize,
        more: bool,
    ) -> Outcome {
        debug_assert!(length <= self.arena.message());
        let Some(fabric) = self.fabric else {
            return Outcome::Later;
        };
        let context = (&raw mut self.contexts[frame]).cast();
        // SAFETY: so many bytes of the frame and its context, which nobody else touches before it has ended.
        Outcome::of(unsafe {
            ffi::takt_fabric_send(
                fabric.as_ptr(),
                peer,
                self.arena.start(frame).cast(),
                length as u64,
                context,
                more.into(),
            )
        })
    }

    /// Posts a frame to receive into; `more` follow at once.
    ///
    /// # Safety
    /// Nobody reads or writes the frame before it has [ended](Self::read).
    #[inline]
    pub(crate) unsafe fn post(&mut self, frame: usize, more: bool) -> Outcome {
        let Some(fabric) = self.fabric else {
            return Outcome::Later;
        };
        let context = (&raw mut self.contexts[frame]).cast();
        // SAFETY: a frame of such a size and its context, which nobody else touches before it has ended.
        Outcome::of(unsafe {
            ffi::takt_fabric_post(
                fabric.as_ptr(),
                self.arena.start(frame).cast(),
                self.arena.message() as u64,
                context,
                more.into(),
            )
        })
    }

    /// Has a posted frame end, [cancelled](Ended::cancelled), unless a message has it.
    #[cold]
    pub(crate) fn cancel(&mut self, frame: usize) {
        if let Some(fabric) = self.fabric {
            let context = (&raw mut self.contexts[frame]).cast();
            // SAFETY: the endpoint is open, and used by one thread; the context says which frame.
            unsafe { ffi::takt_fabric_cancel(fabric.as_ptr(), context) };
        }
    }

    /// What has ended since, at most [`BURST`]; and lets the provider get on with its work.
    #[inline]
    pub(crate) fn read(&mut self, mut ended: impl FnMut(Ended)) -> usize {
        let Some(fabric) = self.fabric else {
            return 0;
        };
        // SAFETY: room for a burst.
        let count =
            unsafe { ffi::takt_fabric_read(fabric.as_ptr(), self.done.as_mut_ptr(), BURST as u64) };
        // The queue of what has ended is dead, and with it the endpoint.
        self.dead |= count < 0;
        let count = usize::try_from(count).unwrap_or(0).min(BURST);
        let base = self.contexts.as_ptr() as usize;
        for done in &self.done[..count] {
            let offset = (done.context as usize).wrapping_sub(base);
            let frame = offset / size_of::<Context>();
            // Something of the provider's own has failed otherwise.
            if frame < self.contexts.len() {
                ended(Ended {
                    frame,
                    length: (done.length as usize).min(self.arena.message()),
                    failed: done.error != 0,
                    cancelled: done.error == libc::ECANCELED,
                });
            }
        }
        count
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

fn failure(
    provider: Provider,
    bind: SocketAddr,
    length: usize,
    step: &str,
    error: i32,
) -> OpenError {
    let source = std::io::Error::from_raw_os_error(error);
    match error {
        libc::EADDRINUSE | libc::EADDRNOTAVAIL => OpenError::Bind {
            address: bind,
            source,
        },
        libc::EBUSY if provider == Provider::Shm => OpenError::Bind {
            address: bind,
            source: std::io::Error::from_raw_os_error(libc::EADDRINUSE),
        },
        libc::ENODATA => refused(format!(
            "{} has no interface or device with address {}: `fi_info -p {}` lists what it has",
            provider.name(),
            bind.ip(),
            provider.name()
        )),
        libc::ENOMEM if step == "register memory" => OpenError::Privilege(format!(
            "the device may not lock {} KiB of memory: raise the limit (`LimitMEMLOCK=infinity` in the service, or \
             CAP_IPC_LOCK), or lower frame_size, receives and sends",
            length.div_ceil(1024)
        )),
        libc::EACCES | libc::EPERM => OpenError::Privilege(format!(
            "cannot {step} with {}: {} (access to the device under /dev/infiniband, or /dev/shm)",
            provider.name(),
            words(error)
        )),
        _ if error > 255 => refused(format!(
            "cannot {step} with {}: {}",
            provider.name(),
            words(error)
        )),
        _ => OpenError::System {
            action: format!("cannot {step} with {}", provider.name()),
            source,
        },
    }
}

/// Ports of this process in shared memory.
static REGIONS: Mutex<BTreeSet<SocketAddr>> = Mutex::new(BTreeSet::new());

/// Shared memory's provider has one list of regions in a process, which its calls do not all protect.
static ONE: Mutex<()> = Mutex::new(());

fn one_by_one(provider: Provider) -> Option<MutexGuard<'static, ()>> {
    (provider == Provider::Shm).then(|| ONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Whether a port of shared memory is this process's.
pub(crate) fn is_of_this_process(address: SocketAddr) -> bool {
    let regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    regions.contains(&address)
}

/// Holds the number of a port that the provider itself knows nothing of, until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldNumber {
    _socket: OwnedFd,
    pub(crate) bind: SocketAddr,
}

impl HeldNumber {
    /// # Errors
    /// [`OpenError::Bind`].
    pub(crate) fn hold(bind: SocketAddr) -> Result<Self, OpenError> {
        use std::os::fd::FromRawFd;
        let failed = |source| OpenError::Bind {
            address: bind,
            source,
        };
        let domain = if bind.is_ipv4() {
            libc::AF_INET
        } else {
            libc::AF_INET6
        };
        // SAFETY: plain call.
        let fd = unsafe { libc::socket(domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        // SAFETY: new, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let address = Address::new(Provider::Tcp, bind);
        let (raw, length, _) = address.raw();
        // SAFETY: an address of that length.
        if unsafe { libc::bind(socket.as_raw_fd(), raw.cast(), length as libc::socklen_t) } != 0 {
            return Err(failed(std::io::Error::last_os_error()));
        }
        let listener = std::net::TcpListener::from(socket);
        let bound = listener.local_addr().map_err(failed)?;
        let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
        regions.insert(bound);
        drop(regions);
        Ok(Self {
            _socket: listener.into(),
            bind: bound,
        })
    }
}

impl Drop for HeldNumber {
    fn drop(&mut self) {
        let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
        regions.remove(&self.bind);
    }
}

/// The address that this host sends to `remote` from.
pub(crate) fn source_for(bind: SocketAddr, remote: SocketAddr) -> std::io::Result<SocketAddr> {
    // A socket that sends nothing: the kernel says which way it would.
    let any = match bind {
        SocketAddr::V4(bind) => SocketAddr::from((*bind.ip(), 0)),
        SocketAddr::V6(bind) => SocketAddrV6::new(*bind.ip(), 0, 0, bind.scope_id()).into(),
    };
    let socket = std::net::UdpSocket::bind(any)?;
    socket.connect(remote)?;
    let mut source = socket.local_addr()?;
    source.set_port(bind.port());
    Ok(source)
}

/// Whether an address is one of this network namespace's own.
pub(crate) fn is_own(address: SocketAddr) -> bool {
    let unspecified = match address {
        SocketAddr::V4(address) => *address.ip() == Ipv4Addr::UNSPECIFIED,
        SocketAddr::V6(address) => *address.ip() == Ipv6Addr::UNSPECIFIED,
    };
    let mut any = address;
    any.set_port(0);
    !unspecified && std::net::UdpSocket::bind(any).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file in shared memory. Gone when dropped.
    struct Region(String);

    impl Drop for Region {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_peer_in_shared_memory_is_entered_when_his_region_is_there_and_ours_alone() {
        use std::os::unix::fs::PermissionsExt;
        let config = FabricConfig::new(Provider::Shm);
        if let Err(reason) = probe(Provider::Shm, &config) {
            println!("skipped: {reason}");
            return;
        }
        let at = |number| SocketAddr::from((Ipv4Addr::new(127, 99, 0, 1), number));
        let mut endpoint = Endpoint::open(Provider::Shm, &config, at(1)).expect("an endpoint");
        let peer = Address::new(Provider::Shm, at(2));
        let Address::Name(name) = &peer else {
            panic!("it has a name");
        };
        // Whoever makes it from here on would have it used when something is sent.
        assert_eq!(endpoint.insert(&peer), Err(libc::ENOENT));
        let region = Region(region_file(name));
        std::fs::write(&region.0, [0; 4096]).expect("a file");
        for mode in [0o620, 0o602] {
            let open = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&region.0, open).expect("ours");
            assert_eq!(endpoint.insert(&peer), Err(libc::EACCES), "{mode:o}");
        }
        let closed = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&region.0, closed).expect("ours");
        if std::os::unix::fs::chown(&region.0, Some(65_534), None).is_ok() {
            assert_eq!(endpoint.insert(&peer), Err(libc::EACCES), "of another user");
        }
        drop(region);
        let other = Endpoint::open(Provider::Shm, &config, at(2)).expect("an endpoint");
        endpoint.insert(&peer).expect("it is there, and ours");
        drop((endpoint, other));
    }
}
