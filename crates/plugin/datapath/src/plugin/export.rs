//! A datapath in Rust as a plugin: the table over the two traits.

use std::ffi::{CStr, c_int, c_void};
use std::io;

use takt_time::{TaiTime, TrafficClass};

use super::Options;
use super::abi::{
    ABI_VERSION, ACCELERATED, Address, Counters, Datagram as RawDatagram, Deliver, Description,
    Failure, FailureKind, LAUNCH_NONE, LAUNCH_TIME, NEEDS_POLLING, NO_UDP, NotReserved,
    OWN_ADDRESSES, Opt, Request, TEXT, Table, ZERO_COPY, write_text,
};
use crate::{
    ConnectError, Datapath, Frame, Health, OpenError, PeerHandle, Port, PortRequest, ReserveError,
};

/// What [`export_datapath!`](crate::export_datapath) makes of a plugin.
pub trait Export {
    /// The technology.
    const NAME: &'static CStr;
    /// The plugin's version.
    const VERSION: &'static CStr;

    /// Finds out what is there.
    ///
    /// # Errors
    /// [`OpenError`].
    fn create(options: &Options) -> Result<Box<dyn Datapath>, OpenError>;
}

/// Exports a datapath from a `cdylib`: its name, its version, and the function that makes one from its [`Options`].
///
/// ```ignore
/// takt_datapath::export_datapath!("loop", env!("CARGO_PKG_VERSION"), |options| {
///     LoopDatapath::new(options).map(|datapath| Box::new(datapath) as Box<dyn Datapath>)
/// });
/// ```
///
/// A panic inside ends the process with its message: it does not pass the boundary.
#[macro_export]
macro_rules! export_datapath {
    ($name:expr, $version:expr, $create:expr) => {
        const _: () = {
            struct Plugin;

            impl $crate::plugin::Export for Plugin {
                const NAME: &'static ::core::ffi::CStr =
                    match ::core::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!("a name without zero octets"),
                    };
                const VERSION: &'static ::core::ffi::CStr =
                    match ::core::ffi::CStr::from_bytes_with_nul(concat!($version, "\0").as_bytes())
                    {
                        Ok(version) => version,
                        Err(_) => panic!("a version without zero octets"),
                    };

                fn create(
                    options: &$crate::plugin::Options,
                ) -> ::core::result::Result<
                    ::std::boxed::Box<dyn $crate::Datapath>,
                    $crate::OpenError,
                > {
                    let create: fn(&$crate::plugin::Options) -> _ = $create;
                    create(options)
                }
            }

            #[allow(unsafe_code, non_upper_case_globals)]
            // SAFETY: no other symbol of a plugin has this name.
            #[unsafe(no_mangle)]
            static takt_datapath_plugin: $crate::plugin::Table = $crate::plugin::table::<Plugin>();
        };
    };
}

/// The table of a plugin in Rust.
pub const fn table<E: Export>() -> Table {
    Table {
        abi: ABI_VERSION,
        size: size_of::<Table>() as u32,
        name: E::NAME.as_ptr(),
        version: E::VERSION.as_ptr(),
        create: Some(create::<E>),
        destroy: Some(destroy),
        capabilities: Some(capabilities),
        open: Some(open),
        close: Some(close),
        local: Some(local),
        connect: Some(connect),
        connect_link: Some(connect_link),
        disconnect: Some(disconnect),
        reaches: Some(reaches),
        max_payload: Some(max_payload),
        reserve: Some(reserve),
        payload: Some(payload),
        commit: Some(commit),
        keeps_launch_time: Some(keeps_launch_time),
        cancel: Some(cancel),
        flush: Some(flush),
        receive: Some(receive),
        receive_costs_syscall: Some(receive_costs_syscall),
        wait_fd: Some(wait_fd),
        counters: Some(counters),
        longest_received: Some(longest_received),
        fault: Some(fault),
    }
}

/// What a handle of a datapath leads to.
struct Made {
    datapath: Box<dyn Datapath>,
    health: Option<Box<dyn Health>>,
}

/// Fills a failure; what a call gives then.
unsafe fn fail(
    failure: *mut Failure,
    kind: FailureKind,
    source: Option<&io::Error>,
    limit: usize,
    text: &str,
) -> c_int {
    // SAFETY: the caller's place, by the contract.
    if let Some(failure) = unsafe { failure.as_mut() } {
        failure.kind = kind as i32;
        failure.os_error = source.and_then(io::Error::raw_os_error).unwrap_or(0);
        failure.limit = limit as u64;
        write_text(&mut failure.text, text);
    }
    -1
}

unsafe fn fail_to_open(failure: *mut Failure, error: &OpenError) -> c_int {
    let (kind, source, text) = match error {
        OpenError::Privilege(text) => (FailureKind::Privilege, None, text.clone()),
        OpenError::Bind { source, .. } => (FailureKind::Bind, Some(source), source.to_string()),
        OpenError::Unavailable(text) => (FailureKind::Unavailable, None, text.clone()),
        OpenError::System { action, source } => {
            // What has no number is told in words.
            let text = match source.raw_os_error() {
                Some(_) => action.clone(),
                None => error.to_string(),
            };
            (FailureKind::System, Some(source), text)
        }
    };
    // SAFETY: the caller's promise.
    unsafe { fail(failure, kind, source, 0, &text) }
}

unsafe fn fail_to_connect(failure: *mut Failure, error: &ConnectError) -> c_int {
    let (kind, source, limit) = match error {
        ConnectError::NoRoute(_) => (FailureKind::NoRoute, None, 0),
        ConnectError::TooManyPeers(limit) => (FailureKind::TooManyPeers, None, *limit),
        ConnectError::NoFrames => (FailureKind::NoFrames, None, 0),
        ConnectError::OtherInterface(_) => (FailureKind::OtherInterface, None, 0),
        ConnectError::Link { source, .. } => (FailureKind::Link, Some(source), 0),
        ConnectError::AddressFamily { .. } => (FailureKind::AddressFamily, None, 0),
        ConnectError::System { source, .. } => (FailureKind::System, Some(source), 0),
    };
    let text = source.map_or_else(|| error.to_string(), io::Error::to_string);
    // SAFETY: the caller's promise.
    unsafe { fail(failure, kind, source, limit, &text) }
}

// SAFETY of everything below: pointers are those that this table gave out, or places of the caller, by the contract.

unsafe extern "C" fn create<E: Export>(
    options: *const Opt,
    count: usize,
    datapath: *mut *mut c_void,
    failure: *mut Failure,
) -> c_int {
    let raw = match count {
        0 => &[],
        // SAFETY: as above, here and in all functions below.
        _ => unsafe { std::slice::from_raw_parts(options, count) },
    };
    let text = |text: *const std::ffi::c_char| {
        // SAFETY: a text that ends with a zero.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    };
    let options = Options(raw.iter().map(|o| (text(o.key), text(o.value))).collect());
    match E::create(&options) {
        Ok(made) => {
            // Asked now and then: who asks is not told.
            let health = made.health(Box::new(|| ()));
            let handle = Box::into_raw(Box::new(Made {
                datapath: made,
                health,
            }));
            // SAFETY: as above.
            unsafe { *datapath = handle.cast() };
            0
        }
        // SAFETY: as above.
        Err(error) => unsafe { fail_to_open(failure, &error) },
    }
}

unsafe extern "C" fn destroy(datapath: *mut c_void) {
    // SAFETY: as above: from `create`, ended once.
    drop(unsafe { Box::from_raw(datapath.cast::<Made>()) });
}

unsafe fn datapath<'a>(datapath: *mut c_void) -> &'a dyn Datapath {
    // SAFETY: as above.
    unsafe { &*(*datapath.cast::<Made>()).datapath }
}

unsafe extern "C" fn fault(datapath: *mut c_void, failure: *mut Failure) -> c_int {
    // SAFETY: as above.
    let made = unsafe { &*datapath.cast::<Made>() };
    match made.health.as_ref().and_then(|health| health.fault()) {
        None => 0,
        // SAFETY: the caller's place.
        Some(why) => unsafe { fail(failure, FailureKind::Unavailable, None, 0, &why) },
    }
}

unsafe extern "C" fn capabilities(handle: *mut c_void, told: *mut Description) {
    // SAFETY: as above.
    let (capabilities, told) = unsafe { (datapath(handle).capabilities(), &mut *told) };
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    told.flags = flag(capabilities.accelerated, ACCELERATED)
        | flag(capabilities.needs_polling, NEEDS_POLLING)
        | flag(capabilities.hardware_launch_time, LAUNCH_TIME)
        | flag(capabilities.zero_copy, ZERO_COPY)
        | flag(!capabilities.speaks_udp, NO_UDP)
        | flag(capabilities.own_addresses, OWN_ADDRESSES);
    told.detail = [0; TEXT];
    write_text(&mut told.detail, &capabilities.detail);
}

unsafe extern "C" fn open(
    handle: *mut c_void,
    request: *const Request,
    port: *mut *mut c_void,
    failure: *mut Failure,
) -> c_int {
    // SAFETY: as above.
    let (datapath, raw) = unsafe { (datapath(handle), &*request) };
    let Some(bind) = raw.bind.read() else {
        // SAFETY: as above.
        return unsafe {
            fail(
                failure,
                FailureKind::Unavailable,
                None,
                0,
                "no address to bind to",
            )
        };
    };
    let request = PortRequest {
        lane: raw.lane,
        lanes: raw.lanes,
        bind,
    };
    match datapath.open(&request) {
        Ok(made) => {
            // SAFETY: as above.
            unsafe { *port = Box::into_raw(Box::new(made)).cast() };
            0
        }
        // SAFETY: as above.
        Err(error) => unsafe { fail_to_open(failure, &error) },
    }
}

unsafe extern "C" fn close(port: *mut c_void) {
    // SAFETY: as above: from `open`, closed once.
    drop(unsafe { Box::from_raw(port.cast::<Box<dyn Port>>()) });
}

unsafe fn port<'a>(port: *mut c_void) -> &'a mut dyn Port {
    // SAFETY: as above; one thread at a time uses it.
    unsafe { &mut **port.cast::<Box<dyn Port>>() }
}

unsafe extern "C" fn local(handle: *mut c_void, told: *mut Address) {
    // SAFETY: as above.
    unsafe { *told = port(handle).local().into() };
}

unsafe extern "C" fn connect(
    handle: *mut c_void,
    remote: *const Address,
    peer: *mut u32,
    failure: *mut Failure,
) -> c_int {
    // SAFETY: as above.
    let Some(remote) = (unsafe { &*remote }).read() else {
        // SAFETY: as above.
        return unsafe { fail(failure, FailureKind::System, None, 0, "no address") };
    };
    // Not `connect`, which may wait for the kernel's tables.
    // SAFETY: as above.
    match unsafe { port(handle) }.connect_at_once(remote, None) {
        Ok(connected) => {
            // SAFETY: as above.
            unsafe { *peer = connected.0 };
            0
        }
        // SAFETY: as above.
        Err(error) => unsafe { fail_to_connect(failure, &error) },
    }
}

unsafe extern "C" fn connect_link(
    handle: *mut c_void,
    interface: u32,
    peer: *mut u32,
    failure: *mut Failure,
) -> c_int {
    // SAFETY: as above.
    match unsafe { port(handle) }.connect_link((interface != 0).then_some(interface)) {
        Ok(connected) => {
            // SAFETY: as above.
            unsafe { *peer = connected.0 };
            0
        }
        // SAFETY: as above.
        Err(error) => unsafe { fail_to_connect(failure, &error) },
    }
}

unsafe extern "C" fn disconnect(handle: *mut c_void, peer: u32) {
    // SAFETY: as above.
    unsafe { port(handle) }.disconnect(PeerHandle(peer));
}

unsafe extern "C" fn reaches(handle: *mut c_void, peer: u32) -> c_int {
    // SAFETY: as above.
    c_int::from(unsafe { port(handle) }.reaches(PeerHandle(peer)))
}

unsafe extern "C" fn max_payload(handle: *mut c_void, peer: u32) -> usize {
    // SAFETY: as above.
    unsafe { port(handle) }.max_payload(PeerHandle(peer))
}

unsafe extern "C" fn reserve(handle: *mut c_void, peer: u32, frame: *mut u32) -> c_int {
    // SAFETY: as above.
    match unsafe { port(handle) }.reserve(PeerHandle(peer)) {
        Ok(reserved) => {
            // SAFETY: as above.
            unsafe { *frame = reserved.0 };
            0
        }
        Err(ReserveError::WouldBlock) => NotReserved::WouldBlock as c_int,
        Err(ReserveError::Unresolved) => NotReserved::Unresolved as c_int,
        Err(ReserveError::UnknownPeer) => NotReserved::UnknownPeer as c_int,
    }
}

unsafe extern "C" fn payload(handle: *mut c_void, frame: u32, length: *mut usize) -> *mut u8 {
    // SAFETY: as above.
    let memory = unsafe { port(handle) }.payload(&Frame(frame));
    // SAFETY: as above.
    unsafe { *length = memory.len() };
    memory.as_mut_ptr()
}

unsafe extern "C" fn commit(
    handle: *mut c_void,
    frame: u32,
    len: usize,
    class: u8,
    launch_ns: i64,
) {
    let class = TrafficClass::new(class).unwrap_or(TrafficClass::BEST_EFFORT);
    let launch = (launch_ns != LAUNCH_NONE).then_some(TaiTime::from_nanos(launch_ns));
    // SAFETY: as above.
    unsafe { port(handle) }.commit(Frame(frame), len, class, launch);
}

unsafe extern "C" fn keeps_launch_time(handle: *mut c_void, peer: u32, class: u8) -> c_int {
    let class = TrafficClass::new(class).unwrap_or(TrafficClass::BEST_EFFORT);
    // SAFETY: as above.
    c_int::from(unsafe { port(handle) }.keeps_launch_time(PeerHandle(peer), class))
}

unsafe extern "C" fn cancel(handle: *mut c_void, frame: u32) {
    // SAFETY: as above.
    unsafe { port(handle) }.cancel(Frame(frame));
}

unsafe extern "C" fn flush(handle: *mut c_void) -> c_int {
    // SAFETY: as above.
    c_int::from(unsafe { port(handle) }.flush())
}

unsafe extern "C" fn receive(
    handle: *mut c_void,
    budget: usize,
    deliver: Deliver,
    context: *mut c_void,
) -> usize {
    // SAFETY: as above.
    unsafe { port(handle) }.receive(budget, &mut |datagram| {
        let raw = RawDatagram {
            source: datagram.source.into(),
            destination_port: datagram.destination_port,
            reserved: [0; 3],
            payload: datagram.payload.as_ptr(),
            length: datagram.payload.len(),
        };
        // SAFETY: as above; the payload is there until it returns.
        unsafe { deliver(context, &raw) };
    })
}

unsafe extern "C" fn receive_costs_syscall(handle: *mut c_void) -> c_int {
    // SAFETY: as above.
    c_int::from(unsafe { port(handle) }.receive_costs_syscall())
}

unsafe extern "C" fn wait_fd(handle: *mut c_void) -> c_int {
    use std::os::fd::AsRawFd;
    // SAFETY: as above.
    match unsafe { port(handle) }.wait_fds().as_slice() {
        [only] => only.as_raw_fd(),
        // The port is not taken then.
        _ => -1,
    }
}

unsafe extern "C" fn counters(handle: *mut c_void, told: *mut Counters) {
    // SAFETY: as above.
    let now = unsafe { port(handle) }.counters();
    let raw = Counters {
        tx_datagrams: now.tx_datagrams,
        tx_bytes: now.tx_bytes,
        tx_errors: now.tx_errors,
        rx_datagrams: now.rx_datagrams,
        rx_bytes: now.rx_bytes,
        rx_dropped: now.rx_dropped,
        rx_invalid: now.rx_invalid,
    };
    // SAFETY: as above.
    unsafe { *told = raw };
}

unsafe extern "C" fn longest_received(handle: *mut c_void) -> usize {
    // SAFETY: as above.
    unsafe { port(handle) }.longest_received()
}
