//! Finding plugins, refusing what does not fit, and using one as a [`Datapath`].

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::{File, Metadata};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use takt_time::{TaiTime, TrafficClass};

use super::Options;
use super::abi::{
    ABI_VERSION, ACCELERATED, Address, Counters, Datagram as RawDatagram, Description, Failure,
    FailureKind, LAUNCH_NONE, LAUNCH_TIME, NEEDS_POLLING, NO_UDP, NotReserved, OWN_ADDRESSES, Opt,
    Request, TEXT, Table, ZERO_COPY, read_text,
};
use crate::{
    Capabilities, ConnectError, Datagram, Datapath, DatapathKind, Frame, Health, OpenError,
    PeerHandle, Port, PortCounters, PortRequest, ReserveError,
};

/// Where packages put plugins.
pub const DIRECTORY: &str = "/usr/lib/takt/datapaths";

/// No datagram of a plugin's is longer.
const LONGEST: usize = u16::MAX as usize;

/// The file of a plugin.
pub fn file_name(name: &str) -> String {
    format!("libtakt_datapath_{name}.so")
}

/// Why a plugin is not used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A name that none has.
    #[error(
        "{0:?} cannot be the name of a datapath: write 1 to 15 lower-case letters, digits and hyphens"
    )]
    Name(String),
    /// There is no such file.
    #[error(
        "there is no plugin {0}: install its package, name its directory with `node.plugins`, or correct the name (only udp and xdp are built in)"
    )]
    Missing(PathBuf),
    /// Somebody else could have written it.
    #[error(
        "{path} {problem}: whoever can write it would run code in this process (chown root, chmod go-w)"
    )]
    Writable {
        /// The file, or its directory.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// It is no shared object, or one whose libraries are not there.
    #[error("{path} cannot be loaded: {reason}")]
    Object {
        /// The file.
        path: PathBuf,
        /// The dynamic loader's words.
        reason: String,
    },
    /// It does not export the table.
    #[error("{0} is no datapath plugin: it does not export `takt_datapath_plugin`")]
    Symbol(PathBuf),
    /// It was made for another version of the interface.
    #[error(
        "{path} is a plugin of interface version {found}, here is {ABI_VERSION}: install the one that comes with this version"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// Its table is not what it must be.
    #[error("{path} is broken: {problem}")]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// All functions that a plugin must have, taken out of their options.
#[derive(Clone, Copy)]
struct Functions {
    create: unsafe extern "C" fn(*const Opt, usize, *mut *mut c_void, *mut Failure) -> c_int,
    destroy: unsafe extern "C" fn(*mut c_void),
    capabilities: unsafe extern "C" fn(*mut c_void, *mut Description),
    open:
        unsafe extern "C" fn(*mut c_void, *const Request, *mut *mut c_void, *mut Failure) -> c_int,
    close: unsafe extern "C" fn(*mut c_void),
    local: unsafe extern "C" fn(*mut c_void, *mut Address),
    connect: unsafe extern "C" fn(*mut c_void, *const Address, *mut u32, *mut Failure) -> c_int,
    connect_link: Option<unsafe extern "C" fn(*mut c_void, u32, *mut u32, *mut Failure) -> c_int>,
    disconnect: unsafe extern "C" fn(*mut c_void, u32),
    reaches: Option<unsafe extern "C" fn(*mut c_void, u32) -> c_int>,
    max_payload: unsafe extern "C" fn(*mut c_void, u32) -> usize,
    reserve: unsafe extern "C" fn(*mut c_void, u32, *mut u32) -> c_int,
    payload: unsafe extern "C" fn(*mut c_void, u32, *mut usize) -> *mut u8,
    commit: unsafe extern "C" fn(*mut c_void, u32, usize, u8, i64),
    keeps_launch_time: Option<unsafe extern "C" fn(*mut c_void, u32, u8) -> c_int>,
    cancel: unsafe extern "C" fn(*mut c_void, u32),
    flush: unsafe extern "C" fn(*mut c_void) -> c_int,
    receive: unsafe extern "C" fn(*mut c_void, usize, super::Deliver, *mut c_void) -> usize,
    receive_costs_syscall: unsafe extern "C" fn(*mut c_void) -> c_int,
    wait_fd: unsafe extern "C" fn(*mut c_void) -> c_int,
    counters: unsafe extern "C" fn(*mut c_void, *mut Counters),
    longest_received: Option<unsafe extern "C" fn(*mut c_void) -> usize>,
    fault: Option<unsafe extern "C" fn(*mut c_void, *mut Failure) -> c_int>,
}

impl Functions {
    /// The name of the first that is missing, if one is.
    fn of(table: &Table) -> Result<Self, &'static str> {
        macro_rules! needed {
            ($($name:ident),*; $($optional:ident),*) => {
                Self {
                    $($name: table.$name.ok_or(stringify!($name))?,)*
                    $($optional: table.$optional,)*
                }
            };
        }
        Ok(needed!(
            create, destroy, capabilities, open, close, local, connect, disconnect, max_payload,
            reserve, payload, commit, cancel, flush, receive, receive_costs_syscall, wait_fd,
            counters; connect_link, reaches, keeps_launch_time, longest_received, fault
        ))
    }
}

/// A plugin that was loaded. It stays in the process for good: threads and thread-local data of a shared object do not bear its
/// being unloaded.
#[derive(Clone)]
pub struct Plugin {
    kind: DatapathKind,
    version: String,
    path: PathBuf,
    functions: Functions,
}

impl std::fmt::Debug for Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plugin")
            .field("kind", &self.kind)
            .field("version", &self.version)
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl Plugin {
    /// Loads the plugin of this name from a directory. Its initialisers run.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load(directory: &Path, name: &str) -> Result<Self, LoadError> {
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > 15 || !name.chars().all(allowed) {
            return Err(LoadError::Name(name.to_owned()));
        }
        let path = directory.join(file_name(name));
        // Looked at and loaded by this descriptor: whatever the path leads to meanwhile.
        let file = ours_alone(&path)?;
        let broken = |problem: String| LoadError::Broken {
            path: path.clone(),
            problem,
        };
        // SAFETY: the file is ours alone; what its initialisers do is what a plugin is trusted with.
        let library = unsafe { Library::open(Some(&by_descriptor(&file)), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| LoadError::Object {
            path: path.clone(),
            reason: error.to_string(),
        })?;
        // A number that another plugin's descriptor gets is this library's name to the dynamic loader.
        std::mem::forget(file);
        // SAFETY: a symbol of this name is a table by the contract; its first two fields are read before the others.
        let symbol = unsafe { library.get::<*const Table>(c"takt_datapath_plugin".to_bytes()) };
        let table = symbol.map_or(std::ptr::null(), |symbol| *symbol);
        // Never unloaded, also if it is refused: see above.
        std::mem::forget(library);
        let Some(table) = NonNull::new(table.cast_mut()).filter(|table| table.is_aligned()) else {
            return Err(LoadError::Symbol(path));
        };
        // SAFETY: a table begins with these two in every version.
        let (abi, size) = unsafe { ((*table.as_ptr()).abi, (*table.as_ptr()).size as usize) };
        if abi != ABI_VERSION {
            return Err(LoadError::Version { path, found: abi });
        }
        if size < Table::FIRST {
            return Err(broken(format!(
                "its table has {size} octets, {} are needed",
                Table::FIRST
            )));
        }
        // What was added since it was made is left out.
        let mut known = MaybeUninit::<Table>::zeroed();
        let octets = size.min(size_of::<Table>());
        // SAFETY: both have as many octets; a table of zeros is one of numbers and functions that are left out.
        let table = unsafe {
            std::ptr::copy_nonoverlapping(
                table.as_ptr().cast::<u8>(),
                known.as_mut_ptr().cast::<u8>(),
                octets,
            );
            known.assume_init()
        };
        let text = |from: *const std::ffi::c_char, what: &str| {
            if from.is_null() {
                return Err(broken(format!("it has no {what}")));
            }
            // SAFETY: a text that ends with a zero, by the contract.
            let text = unsafe { CStr::from_ptr(from) }.to_str();
            let text = text.map_err(|_| broken(format!("its {what} is no UTF-8")))?;
            Ok(text
                .chars()
                .take(64)
                .filter(|c| !c.is_control())
                .collect::<String>())
        };
        let own = text(table.name, "name")?;
        if own != name {
            return Err(broken(format!("it calls itself {own:?}")));
        }
        let version = text(table.version, "version")?;
        let functions = Functions::of(&table)
            .map_err(|missing| broken(format!("it has no function `{missing}`")))?;
        Ok(Self {
            // One for each plugin of a process.
            kind: DatapathKind(String::leak(own)),
            version,
            path,
            functions,
        })
    }

    /// Its own version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Finds out what is there, with these options.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn create(&self, options: &Options) -> Result<Box<dyn Datapath>, OpenError> {
        let text = |text: &str| {
            CString::new(text).map_err(|_| {
                OpenError::Unavailable(format!("an option holds a zero octet: {text:?}"))
            })
        };
        let mut texts = Vec::new();
        for (key, value) in &options.0 {
            texts.push((text(key)?, text(value)?));
        }
        let raw: Vec<Opt> = texts
            .iter()
            .map(|(key, value)| Opt {
                key: key.as_ptr(),
                value: value.as_ptr(),
            })
            .collect();
        let (mut handle, mut failure) = (std::ptr::null_mut(), Failure::default());
        // SAFETY: texts and places outlive the call.
        let failed = unsafe {
            (self.functions.create)(raw.as_ptr(), raw.len(), &raw mut handle, &raw mut failure)
        };
        if failed != 0 {
            return Err(open_error(&failure, None));
        }
        Ok(Box::new(Loaded(Arc::new(Handle {
            plugin: self.clone(),
            handle,
        }))))
    }
}

/// The file is there, and nobody but root and this user can write it, its directories, or the link that leads to it.
fn ours_alone(path: &Path) -> Result<File, LoadError> {
    let missing = |_| LoadError::Missing(path.to_owned());
    let named = std::fs::symlink_metadata(path).map_err(missing)?;
    // A pipe would keep us waiting.
    let nonblock = libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(nonblock).open(path);
    let file = file.map_err(missing)?;
    let known = file.metadata().map_err(missing)?;
    let refuse = |path: &Path, problem: String| {
        let path = path.to_owned();
        Err(LoadError::Writable { path, problem })
    };
    if !known.is_file() {
        return refuse(path, "is no file".into());
    }
    if let Some(problem) = of_others(&named)
        .or_else(|| of_others(&known))
        .or_else(|| writable(&known))
    {
        return refuse(path, problem);
    }
    let real = std::fs::read_link(by_descriptor(&file)).map_err(missing)?;
    for directory in real.ancestors().skip(1).chain(path.parent()) {
        let known = std::fs::metadata(directory).map_err(missing)?;
        // Of a directory with the sticky bit, nobody replaces the files of others.
        let open = writable(&known).filter(|_| known.mode() & 0o1000 == 0);
        if let Some(problem) = of_others(&known).or(open) {
            return refuse(directory, problem);
        }
    }
    Ok(file)
}

fn by_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn of_others(known: &Metadata) -> Option<String> {
    // SAFETY: it asks for a number.
    let own = unsafe { libc::geteuid() };
    let other = known.uid() != 0 && known.uid() != own;
    other.then(|| format!("belongs to user {}", known.uid()))
}

fn writable(known: &Metadata) -> Option<String> {
    let mode = known.mode() & 0o7777;
    (mode & 0o022 != 0).then(|| format!("can be written by others (mode {mode:o})"))
}

fn io_error(failure: &Failure) -> std::io::Error {
    match failure.os_error {
        0 => std::io::Error::other(read_text(&failure.text)),
        number => std::io::Error::from_raw_os_error(number),
    }
}

fn open_error(failure: &Failure, bind: Option<SocketAddr>) -> OpenError {
    let text = read_text(&failure.text);
    let is = |kind: FailureKind| failure.kind == kind as i32;
    match bind {
        _ if is(FailureKind::Privilege) => OpenError::Privilege(text),
        Some(address) if is(FailureKind::Bind) => OpenError::Bind {
            address,
            source: io_error(failure),
        },
        // Why is in the text where it has no number.
        _ if is(FailureKind::System) && failure.os_error == 0 => {
            let (action, why) = text
                .split_once(": ")
                .unwrap_or((&text, "the plugin does not say why"));
            OpenError::System {
                action: action.into(),
                source: std::io::Error::other(why),
            }
        }
        _ if is(FailureKind::System) => OpenError::System {
            action: text,
            source: io_error(failure),
        },
        _ => OpenError::Unavailable(text),
    }
}

/// A datapath of a plugin; ended with the last of its ports.
struct Handle {
    plugin: Plugin,
    handle: *mut c_void,
}

// SAFETY: a plugin's functions on a datapath may be called by any thread, at the same time.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `create`, ended once, after its ports, which hold it.
        unsafe { (self.plugin.functions.destroy)(self.handle) };
    }
}

struct Loaded(Arc<Handle>);

impl Datapath for Loaded {
    fn kind(&self) -> DatapathKind {
        self.0.plugin.kind
    }

    fn capabilities(&self) -> Capabilities {
        let mut told = Description {
            flags: 0,
            reserved: 0,
            detail: [0; TEXT],
        };
        // SAFETY: the datapath is there, the place is ours.
        unsafe { (self.0.plugin.functions.capabilities)(self.0.handle, &raw mut told) };
        let says = |flag| told.flags & flag != 0;
        Capabilities {
            accelerated: says(ACCELERATED),
            needs_polling: says(NEEDS_POLLING),
            hardware_launch_time: says(LAUNCH_TIME)
                && self.0.plugin.functions.keeps_launch_time.is_some(),
            zero_copy: says(ZERO_COPY),
            speaks_udp: !says(NO_UDP),
            own_addresses: says(OWN_ADDRESSES),
            detail: format!(
                "{}; plugin {}",
                read_text(&told.detail),
                self.0.plugin.version
            ),
        }
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        let f = self.0.plugin.functions;
        let raw = Request {
            lane: request.lane,
            lanes: request.lanes,
            reserved: 0,
            bind: request.bind.into(),
        };
        let (mut handle, mut failure) = (std::ptr::null_mut(), Failure::default());
        // SAFETY: the datapath is there, places and request outlive the call.
        let failed = unsafe { (f.open)(self.0.handle, &raw, &raw mut handle, &raw mut failure) };
        if failed != 0 {
            return Err(open_error(&failure, Some(request.bind)));
        }
        let broken = |what: &str| {
            let name = self.0.plugin.path.display();
            OpenError::Unavailable(format!("{name} is broken: {what}"))
        };
        if handle.is_null() {
            return Err(broken("it has opened a port that is NULL"));
        }
        let mut port = LoadedPort {
            f,
            handle,
            local: request.bind,
            wait: -1,
            datapath: self.0.clone(),
        };
        let mut local = Address::from(request.bind);
        // SAFETY: the port is there, here and below.
        unsafe { (f.local)(handle, &raw mut local) };
        port.local = local
            .read()
            .filter(|address| address.port() != 0)
            .ok_or_else(|| broken("a port of it tells no address"))?;
        // SAFETY: as above.
        port.wait = unsafe { (f.wait_fd)(handle) };
        // SAFETY: asks whether the number is an open descriptor.
        if port.wait < 0 || unsafe { libc::fcntl(port.wait, libc::F_GETFD) } < 0 {
            return Err(broken("a port of it has no descriptor to wait for"));
        }
        Ok(Box::new(port))
    }

    fn health(&self, _changed: Box<dyn Fn() + Send>) -> Option<Box<dyn Health>> {
        self.0.plugin.functions.fault?;
        Some(Box::new(Arc::clone(&self.0)))
    }
}

impl Health for Arc<Handle> {
    fn fault(&self) -> Option<String> {
        let mut failure = Failure::default();
        let fault = self.plugin.functions.fault?;
        // SAFETY: the datapath is there, the place is ours.
        let failed = unsafe { fault(self.handle, &raw mut failure) } != 0;
        failed.then(|| match read_text(&failure.text) {
            text if text.is_empty() => "the plugin says that it has failed, and not why".into(),
            text => text,
        })
    }
}

/// A lane's port of a plugin.
struct LoadedPort {
    f: Functions,
    handle: *mut c_void,
    local: SocketAddr,
    wait: RawFd,
    /// Ended after its ports.
    #[allow(dead_code, reason = "held")]
    datapath: Arc<Handle>,
}

// SAFETY: a port's functions may be called by any thread, one at a time, which `&mut` sees to; those with `&` only read.
unsafe impl Send for LoadedPort {}

impl Drop for LoadedPort {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once, and not used any more.
        unsafe { (self.f.close)(self.handle) };
    }
}

impl LoadedPort {
    fn connect_error(&self, failure: &Failure, peer: SocketAddr) -> ConnectError {
        let is = |kind: FailureKind| failure.kind == kind as i32;
        if is(FailureKind::NoRoute) {
            ConnectError::NoRoute(peer)
        } else if is(FailureKind::TooManyPeers) {
            ConnectError::TooManyPeers(usize::try_from(failure.limit).unwrap_or(usize::MAX))
        } else if is(FailureKind::AddressFamily) {
            ConnectError::AddressFamily {
                peer,
                local: self.local,
            }
        } else {
            ConnectError::System {
                peer,
                source: io_error(failure),
            }
        }
    }
}

// SAFETY of the calls below: the port is there, and used by one thread at a time; places outlive the calls.
impl Port for LoadedPort {
    fn local(&self) -> SocketAddr {
        self.local
    }

    fn reaches(&mut self, peer: PeerHandle) -> bool {
        // SAFETY: as above.
        (self.f.reaches).is_none_or(|reaches| unsafe { reaches(self.handle, peer.0) != 0 })
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        let (mut peer, mut failure) = (0, Failure::default());
        let address = Address::from(remote);
        // SAFETY: as above.
        match unsafe { (self.f.connect)(self.handle, &address, &raw mut peer, &raw mut failure) } {
            0 => Ok(PeerHandle(peer)),
            _ => Err(self.connect_error(&failure, remote)),
        }
    }

    fn connect_link(&mut self, interface: Option<u32>) -> Result<PeerHandle, ConnectError> {
        let none = interface.map_or(ConnectError::NoFrames, ConnectError::OtherInterface);
        let Some(connect_link) = self.f.connect_link else {
            return Err(none);
        };
        let (mut peer, mut failure) = (0, Failure::default());
        let by = interface.unwrap_or(0);
        // SAFETY: as above.
        if unsafe { connect_link(self.handle, by, &raw mut peer, &raw mut failure) } == 0 {
            return Ok(PeerHandle(peer));
        }
        match failure.kind {
            kind if kind == FailureKind::TooManyPeers as i32 => Err(ConnectError::TooManyPeers(
                usize::try_from(failure.limit).unwrap_or(usize::MAX),
            )),
            kind if kind == FailureKind::Link as i32 => Err(ConnectError::Link {
                interface: by,
                source: io_error(&failure),
            }),
            _ => Err(none),
        }
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        // SAFETY: as above.
        unsafe { (self.f.disconnect)(self.handle, peer.0) };
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        // SAFETY: as above.
        unsafe { (self.f.max_payload)(self.handle, peer.0) }.min(LONGEST)
    }

    fn longest_received(&self) -> usize {
        // SAFETY: as above.
        (self.f.longest_received).map_or(usize::MAX, |longest| unsafe { longest(self.handle) })
    }

    #[inline]
    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        let mut frame = 0;
        // SAFETY: as above.
        match unsafe { (self.f.reserve)(self.handle, peer.0, &raw mut frame) } {
            0 => Ok(Frame(frame)),
            told if told == NotReserved::Unresolved as c_int => Err(ReserveError::Unresolved),
            told if told == NotReserved::UnknownPeer as c_int => Err(ReserveError::UnknownPeer),
            _ => Err(ReserveError::WouldBlock),
        }
    }

    #[inline]
    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        let mut length = 0;
        // SAFETY: as above.
        let memory = unsafe { (self.f.payload)(self.handle, frame.0, &raw mut length) };
        match memory.is_null() {
            true => &mut [],
            // SAFETY: the frame's memory, which is the caller's until it is committed or cancelled.
            false => unsafe { std::slice::from_raw_parts_mut(memory, length.min(LONGEST)) },
        }
    }

    #[inline]
    fn commit(
        &mut self,
        frame: Frame,
        len: usize,
        class: TrafficClass,
        launch_time: Option<TaiTime>,
    ) {
        let launch_ns = launch_time.map_or(LAUNCH_NONE, |time| time.as_nanos());
        // SAFETY: as above.
        unsafe { (self.f.commit)(self.handle, frame.0, len, class.number(), launch_ns) };
    }

    fn keeps_launch_time(&self, peer: PeerHandle, class: TrafficClass) -> bool {
        let keeps = |keeps: unsafe extern "C" fn(*mut c_void, u32, u8) -> c_int| {
            // SAFETY: as above.
            unsafe { keeps(self.handle, peer.0, class.number()) != 0 }
        };
        self.f.keeps_launch_time.is_some_and(keeps)
    }

    fn cancel(&mut self, frame: Frame) {
        // SAFETY: as above.
        unsafe { (self.f.cancel)(self.handle, frame.0) };
    }

    #[inline]
    fn flush(&mut self) -> bool {
        // SAFETY: as above.
        unsafe { (self.f.flush)(self.handle) != 0 }
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        /// The callback of a call, and how many more it may be shown.
        struct Context<'a> {
            deliver: &'a mut dyn FnMut(Datagram<'_>),
            left: usize,
        }

        unsafe extern "C" fn hand_on(context: *mut c_void, datagram: *const RawDatagram) {
            // SAFETY: the context is that of the call that this is made in, the datagram is there until it returns.
            let (context, raw) = unsafe { (&mut *context.cast::<Context<'_>>(), &*datagram) };
            let Some(source) = raw.source.read() else {
                return;
            };
            if context.left == 0 || raw.length > LONGEST {
                return;
            }
            context.left -= 1;
            let payload = match raw.payload.is_null() {
                true => &[],
                // SAFETY: so many octets, until the callback returns.
                false => unsafe { std::slice::from_raw_parts(raw.payload, raw.length) },
            };
            (context.deliver)(Datagram {
                source,
                destination_port: raw.destination_port,
                payload,
            });
        }
        let left = budget;
        let mut context = Context { deliver, left };
        let place = (&raw mut context).cast();
        // SAFETY: as above; the callback outlives the call.
        unsafe { (self.f.receive)(self.handle, budget, hand_on, place) };
        budget - context.left
    }

    fn receive_costs_syscall(&self) -> bool {
        // SAFETY: as above.
        unsafe { (self.f.receive_costs_syscall)(self.handle) != 0 }
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        // SAFETY: open for the port's whole life by the contract, and looked at when it was opened.
        vec![unsafe { BorrowedFd::borrow_raw(self.wait) }]
    }

    fn counters(&self) -> PortCounters {
        let mut raw = Counters::default();
        // SAFETY: as above.
        unsafe { (self.f.counters)(self.handle, &raw mut raw) };
        PortCounters {
            tx_datagrams: raw.tx_datagrams,
            tx_bytes: raw.tx_bytes,
            tx_errors: raw.tx_errors,
            rx_datagrams: raw.rx_datagrams,
            rx_bytes: raw.rx_bytes,
            rx_dropped: raw.rx_dropped,
            rx_invalid: raw.rx_invalid,
        }
    }
}
