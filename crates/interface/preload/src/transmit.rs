//! A send: whether it is taken, and then a frame at its instant.
//!
//! What is odd about a send, its arguments or its memory is left to the kernel, which has the right error for
//! it.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};

use libc::{iovec, msghdr};
use takt::grid::When;
use takt::{FrameOptions, TaiTime, TrafficClass};
use takt_wire::ethernet;

use crate::abi::{self, timestamping};
use crate::address;
use crate::announce::{self, Mode};
use crate::control::{self, Control, Priority};
use crate::destination::{self, Key, Way};
use crate::errors;
use crate::follower;
use crate::frame;
use crate::grid;
use crate::held::Waiting;
use crate::kernel;
use crate::kind::Kind;
use crate::launch::{self, Clock};
use crate::memory;
use crate::news::Station;
use crate::options::Options;
use crate::process::{self, Inside};
use crate::real;
use crate::reports::{Datagram, Ends, Wanted};
use crate::runtime::{self, Refusal, Source};
use crate::socket::{Socket, State};
use crate::unserved::Reason;

/// Control messages longer than this are the kernel's, which refuses them (`net.core.optmem_max`).
const MOST_CONTROL: usize = 1 << 20;
/// Flags of a send that we know to keep.
const FLAGS: c_int = libc::MSG_DONTWAIT
    | libc::MSG_NOSIGNAL
    | libc::MSG_CONFIRM
    | libc::MSG_EOR
    | libc::MSG_ZEROCOPY;
/// First and longest pause while there is no room, in nanoseconds.
const PAUSES: [i64; 2] = [50_000, 1_000_000];
/// How long after its launch time a message is given up whose next hop is not known, in nanoseconds.
const TOO_LATE: i64 = 1_000_000_000;
/// How long the end of a socket waits for a next hop to tell its hardware address, in nanoseconds.
const LINGER: i64 = 1_000_000_000;
/// So many frames may be on their way with something to tell before a send looks for outcomes itself.
const LOOK_AT: usize = runtime::DEPTH as usize;

/// Whose a send is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The kernel's.
    Kernel,
    /// Ours: so many bytes were sent, or the errno.
    Taken(Result<usize, c_int>),
}

/// Why it did not come to a frame.
enum Obstacle {
    /// It has no launch time: the kernel's.
    Untimed,
    /// It has one, and cannot be served.
    Unserved(Reason),
    /// The descriptor leads elsewhere.
    Elsewhere,
    /// No room now.
    Full,
    /// The errno.
    Error(c_int),
}

/// A message as the program handed it over.
struct Message {
    /// Name, control messages, list of parts.
    bytes: Few<u8, 512>,
    name: usize,
    control: usize,
    parts: Few<iovec, 8>,
    total: usize,
}

/// A list that is on the stack if it is short, as those of nearly all messages are: the heap has a lock.
struct Few<T, const MOST: usize> {
    short: [T; MOST],
    long: Vec<T>,
    length: usize,
}

impl<T: Copy, const MOST: usize> Few<T, MOST> {
    fn new(fill: T, length: usize) -> Self {
        Self {
            short: [fill; MOST],
            long: match length > MOST {
                true => vec![fill; length],
                false => Vec::new(),
            },
            length,
        }
    }
}

impl<T, const MOST: usize> std::ops::Deref for Few<T, MOST> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self.length > MOST {
            true => &self.long,
            false => &self.short[..self.length],
        }
    }
}

impl<T, const MOST: usize> std::ops::DerefMut for Few<T, MOST> {
    fn deref_mut(&mut self) -> &mut [T] {
        match self.length > MOST {
            true => &mut self.long,
            false => &mut self.short[..self.length],
        }
    }
}

impl Message {
    /// `None`: it is the kernel's.
    fn read(message: *const msghdr) -> Option<Self> {
        let header = memory::read(message).ok()?;
        let control = abi::control_length(&header);
        // Without control messages, there is no transmission time.
        if control > MOST_CONTROL || control == 0 && !grid::is_on() {
            return None;
        }
        let name = match header.msg_name.is_null() {
            true => 0,
            false => header.msg_namelen as usize,
        };
        if name > size_of::<libc::sockaddr_storage>() || abi::parts(&header) > 1024 {
            return None;
        }
        let list = abi::parts(&header) * size_of::<iovec>();
        let mut bytes = Few::new(0, name + control + list);
        let place = |address: *mut libc::c_void, length| iovec {
            iov_base: address,
            iov_len: length,
        };
        let places = [
            place(header.msg_name, name),
            place(header.msg_control, control),
            place(header.msg_iov.cast(), list),
        ];
        memory::gather(&mut bytes, &places).ok()?;
        let (words, _) = bytes[name + control..].as_chunks::<{ size_of::<usize>() }>();
        let none = place(std::ptr::null_mut(), 0);
        let mut parts = Few::new(none, abi::parts(&header));
        let (pairs, _) = words.as_chunks();
        for (part, &[base, length]) in parts.iter_mut().zip(pairs) {
            *part = iovec {
                iov_base: std::ptr::with_exposed_provenance_mut(usize::from_ne_bytes(base)),
                iov_len: usize::from_ne_bytes(length),
            };
        }
        Some(Self {
            name,
            control,
            total: memory::total(&parts)?,
            parts,
            bytes,
        })
    }

    /// The address that it is for; empty: the socket's peer.
    fn name(&self) -> &[u8] {
        &self.bytes[..self.name]
    }

    fn control(&self) -> &[u8] {
        &self.bytes[self.name..self.name + self.control]
    }

    fn content<'m>(&'m self, to: To<'m>) -> Content<'m> {
        Content {
            to,
            parts: &self.parts,
            total: self.total,
        }
    }
}

/// What becomes a frame: of a message of the program's, or of one that has waited.
struct Content<'m> {
    to: To<'m>,
    parts: &'m [iovec],
    total: usize,
}

/// Whom a message is for.
enum To<'m> {
    /// Of a UDP socket: where it goes, as the socket was when it was sent.
    Way(Key),
    /// Of a packet socket: the address that the program names; empty: none.
    Link(&'m [u8]),
}

/// Sends a message on an accelerated socket, if it is ours to send.
pub fn send(socket: &'static Socket, fd: c_int, message: *const msghdr, flags: c_int) -> Fate {
    process::inside(|inside| {
        let Some(message) = Message::read(message) else {
            return Fate::Kernel;
        };
        send_waiting(socket, fd, &message, flags, inside)
    })
    .unwrap_or(Fate::Kernel)
}

/// A message that nobody has taken: whether it is refused all the same, because it has a launch time that the
/// kernel would not keep and the runtime is required. `None`: it is the kernel's.
pub fn refuse(fd: c_int, message: *const msghdr) -> Option<c_int> {
    let required = announce::mode() == Mode::Required;
    let taken_by_runtime = crate::table::lookup(fd).is_some();
    if !required && !taken_by_runtime {
        return None;
    }
    // Without the lock of a thread's own call, which may be what was interrupted: nothing is kept here.
    let header = memory::read(message).ok()?;
    let length = abi::control_length(&header);
    if !(1..=MOST_CONTROL).contains(&length) {
        return None;
    }
    if process::is_inside() || process::is_borrowed() {
        // No memory may be allocated here. What is longer has a time, as nearly all that have control messages here.
        let mut bytes = [0; 512];
        let timed = match bytes.get_mut(..length) {
            Some(bytes) => {
                memory::read_bytes(bytes, header.msg_control).ok()?;
                names_time(bytes)
            }
            None => true,
        };
        return if timed {
            Reason::Context.settle()
        } else {
            None
        };
    }
    if !required {
        return None;
    }
    process::inside(|_| {
        let mut bytes = vec![0; length];
        memory::read_bytes(&mut bytes, header.msg_control).ok()?;
        if !names_time(&bytes) {
            return None;
        }
        match taken_by_runtime {
            true => Reason::Malformed.settle(),
            false => Reason::Kind.settle(),
        }
    })?
}

/// Whether control messages have a launch time.
fn names_time(mut control: &[u8]) -> bool {
    std::iter::from_fn(|| control::next(&mut control)?.ok()).any(|(level, name, content)| {
        (level, name) == (libc::SOL_SOCKET, libc::SCM_TXTIME) && content != [0; 8]
    })
}

/// Has the kernel send a message on a socket for whose clock it has the monotonic one: with the time by that. `None`:
/// the message can be sent as it is.
pub fn send_by_monotonic(
    socket: &Socket,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> Option<isize> {
    let clock = Clock::new(socket.times()?.clockid)?;
    let mut errno = 0;
    let result = process::inside(|_| {
        let mut header = memory::read(message).ok()?;
        let length = abi::control_length(&header);
        if !(1..=MOST_CONTROL).contains(&length) {
            return None;
        }
        let mut bytes = vec![0; length];
        memory::read_bytes(&mut bytes, header.msg_control).ok()?;
        by_monotonic(clock, &mut bytes);
        header.msg_control = bytes.as_mut_ptr().cast();
        // SAFETY: the program's message, with control messages of ours that are there for the call.
        let result = unsafe { real::sendmsg(fd, &header, flags) };
        errno = process::errno();
        Some(result)
    })??;
    if result < 0 {
        process::set_errno(errno);
    }
    Some(result)
}

/// Writes the launch time among control messages as the monotonic clock has it.
fn by_monotonic(clock: Clock, control: &mut [u8]) {
    let mut places = Vec::new();
    let mut rest = &*control;
    while let Some(Ok((level, name, content))) = control::next(&mut rest) {
        if (level, name) == (libc::SOL_SOCKET, libc::SCM_TXTIME)
            && let Ok(content) = content.try_into().map(u64::from_ne_bytes)
            && content != 0
        {
            let end = control.len() - rest.len();
            places.push((end, clock.to_monotonic(content)));
        }
    }
    for (end, time) in places {
        // The content is eight bytes, and nothing pads it.
        control[end - 8..end].copy_from_slice(&time.to_ne_bytes());
    }
}

/// As a socket does: waits for room unless it must not.
fn send_waiting(
    socket: &'static Socket,
    fd: c_int,
    message: &Message,
    flags: c_int,
    inside: &Inside,
) -> Fate {
    let begun = kernel::monotonic();
    let [mut pause, longest] = PAUSES;
    let (mut way, mut waited) = (None, false);
    // The descriptor leads elsewhere: while one waited for room, it was closed, and what has its number by now is not meant.
    let elsewhere = |waited| match waited {
        true => Fate::Taken(Err(libc::EBADF)),
        false => Fate::Kernel,
    };
    loop {
        let Some(mut state) = socket.current(fd, inside) else {
            return elsewhere(waited);
        };
        match attempt(socket, fd, &mut state, message, flags, &mut way, inside) {
            Ok(()) => return Fate::Taken(Ok(message.total)),
            Err(Obstacle::Untimed) => return Fate::Kernel,
            Err(Obstacle::Elsewhere) => return elsewhere(waited),
            // As far as the runtime reaches, and no message is longer for it than for the kernel.
            Err(Obstacle::Unserved(_) | Obstacle::Error(libc::EMSGSIZE))
                if is_optional(&state, message) =>
            {
                return Fate::Kernel;
            }
            Err(Obstacle::Unserved(reason)) => {
                return match reason.settle() {
                    Some(errno) => Fate::Taken(Err(errno)),
                    None => Fate::Kernel,
                };
            }
            Err(Obstacle::Error(errno)) => return Fate::Taken(Err(errno)),
            Err(Obstacle::Full) => {}
        }
        let timeout = state
            .options
            .as_ref()
            .map_or(0, |options| options.send_timeout);
        drop(state);
        let over = timeout != 0 && kernel::monotonic() - begun >= timeout;
        if over || flags & libc::MSG_DONTWAIT != 0 || kernel::is_nonblocking(fd) {
            // Whoever waits for room is told when there is some.
            socket.set_full(true);
            return Fate::Taken(Err(libc::EAGAIN));
        }
        // As the kernel: a wait with an end is not taken up again.
        if kernel::pause(pause) && (timeout != 0 || !kernel::handlers_restart_calls()) {
            return Fate::Taken(Err(libc::EINTR));
        }
        waited = true;
        pause = (pause * 2).min(longest);
    }
}

/// What a send asks for, by its own control messages and by its socket.
pub struct Request {
    /// As the program has it; 0: it has none.
    launch: u64,
    /// The same; when it was sent, if it has none.
    instant: TaiTime,
    /// When one without a launch time leaves: that hangs on when it is handed over.
    untimed: Option<When>,
    class: TrafficClass,
    stamps: u32,
    control: Control,
}

impl Request {
    fn new(options: &Options, message: &Message, flags: c_int) -> Result<Self, Obstacle> {
        let control = Control::parse(options.kind, message.control())
            .map_err(|_| Obstacle::Unserved(Reason::Malformed))?;
        let class = class(options, &control);
        // For the kernel, too, zero is no time.
        let (launch, instant, untimed) = match control.launch.filter(|time| *time != 0) {
            Some(launch) => {
                let clock = options.clock.ok_or(Obstacle::Unserved(Reason::Kind))?;
                // The kernel's instants are signed, too.
                (launch, clock.of(launch).to_tai(launch as i64), None)
            }
            None => {
                let when = untimed(options, message, class).ok_or(Obstacle::Untimed)?;
                (0, launch::now(), Some(when))
            }
        };
        if options.kernel_only {
            return Err(Obstacle::Unserved(Reason::Options));
        }
        // Without SO_ZEROCOPY the kernel does not heed the flag either.
        if flags & !FLAGS != 0 || flags & libc::MSG_ZEROCOPY != 0 && options.zero_copy {
            return Err(Obstacle::Unserved(Reason::Flags));
        }
        if control.unknown {
            return Err(Obstacle::Unserved(Reason::Control));
        }
        if control.number.is_some() && !options.numbers() {
            return Err(Obstacle::Unserved(Reason::Malformed)); // The kernel says that this is an error.
        }
        if let Some(Priority::Asked(priority)) = control.priority
            && priority > 6
            && !kernel::allows_priority(priority)
        {
            return Err(Obstacle::Error(libc::EPERM));
        }
        let stamps = control.timestamping.unwrap_or(options.timestamping);
        Ok(Self {
            launch,
            instant,
            untimed,
            class,
            stamps: stamps & timestamping::TX_RECORD,
            control,
        })
    }

    /// Whether its launch time is the latest one, and not the very instant.
    fn is_deadline(&self, options: &Options) -> bool {
        options.deadline && self.untimed.is_none()
    }
}

/// When a message without a launch time leaves, if a rule is for it.
fn untimed(options: &Options, message: &Message, class: TrafficClass) -> Option<When> {
    if !grid::is_on() || !matches!(options.kind, Kind::Udp { .. }) {
        return None;
    }
    let destination = match message.name() {
        [] => options.udp.peer,
        name => address::parse(name),
    };
    grid::find(destination?, class)
}

/// Whether a message is as well sent by the kernel: it has no launch time, and the rule for it gives it none.
#[cold]
fn is_optional(state: &State, message: &Message) -> bool {
    let Some(options) = &state.options else {
        return false;
    };
    let Ok(control) = Control::parse(options.kind, message.control()) else {
        return false;
    };
    control.launch.is_none_or(|time| time == 0)
        && untimed(options, message, class(options, &control)) == Some(When::Now)
}

/// The traffic class of a message, by its own priority or else its socket's.
fn class(options: &Options, control: &Control) -> TrafficClass {
    class_of(match control.priority {
        Some(Priority::Asked(priority) | Priority::Implied(priority)) => priority,
        None => options.priority,
    })
}

/// The traffic class of a priority: the same number; best effort for those above the classes, as the
/// kernel's VLAN devices have it for priorities that nobody has mapped.
fn class_of(priority: u32) -> TrafficClass {
    u8::try_from(priority)
        .ok()
        .and_then(TrafficClass::new)
        .unwrap_or(TrafficClass::BEST_EFFORT)
}

/// The socket's source, opened if there is none.
fn source_of<'a>(
    source: &'a mut Option<Source>,
    retry_at: &mut i64,
    inside: &Inside,
) -> Result<&'a Source, Obstacle> {
    if source.is_none() {
        let now = kernel::monotonic();
        if now >= *retry_at {
            *source = Source::open(inside);
            *retry_at = now + runtime::RETRY;
            // In a forked child there is none yet.
            follower::start();
        }
    }
    source.as_ref().ok_or(Obstacle::Unserved(Reason::Runtime))
}

/// Whether the follower finds out where a socket's packets go.
fn is_followed(options: &Options) -> bool {
    follower::follows(options.network)
}

/// One try to send, the way of the first one: whom the socket is connected to meanwhile, the message is not for.
fn attempt(
    socket: &Socket,
    fd: c_int,
    state: &mut State,
    message: &Message,
    flags: c_int,
    way: &mut Option<Key>,
    inside: &Inside,
) -> Result<(), Obstacle> {
    let options = state.options.as_mut().ok_or(Obstacle::Elsewhere)?;
    let request = Request::new(options, message, flags)?;
    let key = match options.kind {
        Kind::Udp { six } => {
            bind_if_needed(socket, fd, options, six)?;
            if way.is_none() {
                *way = Some(key(options, &request.control, message.name(), six)?);
            }
            *way
        }
        Kind::Frames | Kind::Packets => None,
    };
    // What is for one address is handed over in the order in which it was sent: what has no time of its own leaves in that order, and a
    // stream that is declared is held to its periods in that order.
    if let Some(key) = key
        && state.held.len() != 0
    {
        hand_over_held(socket, fd, state, inside);
        if state.held.has(key.destination) {
            return hold(socket, state, message, key, request);
        }
    }
    let to = key.map_or(To::Link(message.name()), To::Way);
    let result = hand_over(socket, fd, state, &message.content(to), &request, inside);
    match (result, key) {
        (Ok(handed), _) => {
            finish(socket, state, &request, handed);
            Ok(())
        }
        (Err(Trouble::Obstacle(Obstacle::Unserved(Reason::Neighbour))), Some(key))
            if state.options.as_ref().is_some_and(is_followed) =>
        {
            hold(socket, state, message, key, request)
        }
        (Err(Trouble::Obstacle(obstacle)), _) => Err(obstacle),
        (Err(Trouble::Refused(refusal)), _) => Err(refused(socket, state, refusal)),
    }
}

/// Keeps a message until its next hop has told its hardware address.
fn hold(
    socket: &Socket,
    state: &mut State,
    message: &Message,
    key: Key,
    mut request: Request,
) -> Result<(), Obstacle> {
    if !state.held.has_room() {
        return Err(Obstacle::Full);
    }
    socket.set_holding(true);
    let mut payload = vec![0; message.total];
    memory::gather(&mut payload, &message.parts).map_err(Obstacle::Error)?;
    let options = state.options.as_ref();
    // Whoever waits from now on hears of it too.
    if options.is_some_and(|options| wanted(options, &request) != Wanted::default()) {
        socket.expect_reports();
    }
    let numbers = options.is_some_and(Options::numbers);
    if request.control.number.is_none() && request.stamps != 0 && numbers {
        request.control.number = Some(state.reports.next_number());
    }
    state.held.push(Waiting {
        key,
        payload,
        control: message.control().to_vec(),
        request,
        since: launch::now(),
    });
    Ok(())
}

/// Hands over what has waited for its next hop, if that has told its address.
pub fn hand_over_held(socket: &Socket, fd: c_int, state: &mut State, inside: &Inside) {
    let mut kept = 0;
    for _ in 0..state.held.len() {
        let Some(mut waiting) = state.held.pop() else {
            return;
        };
        if state.held.last_has(kept, waiting.key.destination) {
            // Behind one for the same address, though that may have been found just now.
            state.held.push(waiting);
            kept += 1;
            continue;
        }
        let parts = [iovec {
            iov_base: waiting.payload.as_mut_ptr().cast(),
            iov_len: waiting.payload.len(),
        }];
        let content = Content {
            to: To::Way(waiting.key),
            parts: &parts,
            total: waiting.payload.len(),
        };
        let obstacle = match hand_over(socket, fd, state, &content, &waiting.request, inside) {
            Ok(handed) => {
                finish(socket, state, &waiting.request, handed);
                continue;
            }
            Err(Trouble::Obstacle(obstacle)) => obstacle,
            Err(Trouble::Refused(refusal)) => refused(socket, state, refusal),
        };
        // As far as the runtime reaches, and no message is longer for it than for the kernel.
        let optional = waiting.request.untimed == Some(When::Now);
        let reason = match obstacle {
            Obstacle::Full => Reason::Neighbour,
            Obstacle::Unserved(reason) => reason,
            Obstacle::Error(libc::EMSGSIZE) if optional => Reason::Station,
            Obstacle::Untimed | Obstacle::Elsewhere | Obstacle::Error(_) => Reason::Malformed,
        };
        // Whether it is too late, the runtime says, which tolerates some: also of what was when it began to wait.
        let due = waiting.request.instant.max(waiting.since);
        let over = launch::now().nanos_since(due) > TOO_LATE;
        if reason == Reason::Neighbour && !over {
            state.held.push(waiting);
            kept += 1;
            continue;
        }
        // What the runtime turns out not to send is the kernel's, as it would have been at once; without an answer of the next hop, it has
        // no way for it either.
        let is_kernels = !matches!(reason, Reason::Neighbour | Reason::Malformed)
            && (optional || announce::mode() != Mode::Required);
        if is_kernels && send_by_kernel(socket, fd, state, &mut waiting) {
            if !optional {
                reason.settle();
            }
            continue;
        }
        give_up(socket, state, waiting, reason);
    }
}

/// Has the kernel send what has waited, as it was handed over; false: it has an error for it.
fn send_by_kernel(socket: &Socket, fd: c_int, state: &mut State, waiting: &mut Waiting) -> bool {
    let Some(options) = &state.options else {
        return false;
    };
    let Kind::Udp { six } = options.kind else {
        return false;
    };
    let numbers = kernel_numbers(options, &waiting.control);
    if let Some(clock) = socket.times().and_then(|times| Clock::new(times.clockid)) {
        by_monotonic(clock, &mut waiting.control);
    }
    let mut name = address::written(waiting.key.destination, six);
    let mut part = iovec {
        iov_base: waiting.payload.as_mut_ptr().cast(),
        iov_len: waiting.payload.len(),
    };
    // SAFETY: plain integers and pointers.
    let mut header: msghdr = unsafe { std::mem::zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as libc::socklen_t;
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = waiting.control.as_mut_ptr().cast();
    header.msg_controllen = waiting.control.len() as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: all that it names is there for the call.
    let sent = unsafe { real::sendmsg(fd, &header, flags) >= 0 };
    if let (true, Some(number)) = (sent && numbers, waiting.request.control.number) {
        state.reports.numbered_by_kernel(number);
    }
    sent
}

/// Whether the kernel gives a message with these control messages a number of its own: one that is to be stamped, and has none.
fn kernel_numbers(options: &Options, control: &[u8]) -> bool {
    let Ok(control) = Control::parse(options.kind, control) else {
        return false;
    };
    let stamps = control.timestamping.unwrap_or(options.timestamping);
    options.numbers() && stamps & timestamping::TX_RECORD != 0 && control.number.is_none()
}

/// Counts a message that has waited for nothing, and tells of it whoever wants to hear of that.
fn give_up(socket: &Socket, state: &mut State, waiting: Waiting, reason: Reason) {
    reason.settle();
    let options = state.options.as_ref();
    let Some(options) = options.filter(|options| options.report_errors) else {
        return;
    };
    socket.expect_reports();
    let launch = match waiting.request.untimed {
        None => waiting.request.launch,
        // The one that it would have now.
        Some(when) => {
            let now = launch::now();
            when.launch(now).unwrap_or(now).as_nanos() as u64
        }
    };
    let (packet, ends) = would_have_been(state, &waiting).unzip();
    let packet = packet.unwrap_or(waiting.payload);
    let limit = options.receive_bytes;
    socket.add_edges(state.reports.given_up(launch, packet, ends, limit));
}

/// The frame that a message which has waited would have been, as far as is known, and its ends.
fn would_have_been(state: &State, waiting: &Waiting) -> Option<(Vec<u8>, Ends)> {
    let Way::Runtime {
        headers,
        interface,
        source,
        ..
    } = state.destinations.latest(&waiting.key)?
    else {
        return None;
    };
    let mut frame = vec![0; headers.len() + waiting.payload.len()];
    frame[headers.len()..].copy_from_slice(&waiting.payload);
    let ends = Ends {
        interface,
        source,
        destination: waiting.key.destination,
    };
    headers
        .emit(&mut frame, state.identification)
        .then_some((frame, ends))
}

/// Waits until what a socket holds has been handed over, but not for long: the descriptor is about to be closed. Those
/// that are closed together have `begun` to wait together.
pub fn settle_held(socket: &'static Socket, fd: c_int, begun: i64, inside: &Inside) {
    let waits = || {
        let state = socket.known(fd, inside);
        state.is_some_and(|state| state.held.len() != 0)
    };
    while waits() && kernel::monotonic() - begun < LINGER {
        kernel::pause(PAUSES[1]);
    }
}

/// Whether a socket has room again for what it had none for, or nothing to wait for.
pub fn has_room(socket: &'static Socket, fd: c_int, inside: &Inside) -> bool {
    let Some(state) = socket.known(fd, inside) else {
        return true;
    };
    let room = |source: &Source| source.has_room(state.wanted);
    state.held.has_room() && state.source.as_ref().is_none_or(room)
}

/// Counts what a socket has held that is nobody's any more.
pub fn count_held(state: State) {
    for _ in 0..state.held.len() {
        // Nobody is left to be refused.
        let _ = Reason::Neighbour.settle();
    }
}

/// Gives up what a socket holds: the process is about to end, or to be another program. Should that fail, nothing is
/// handed over that has been counted.
pub fn give_up_held(socket: &Socket, state: &mut State) {
    while let Some(waiting) = state.held.pop() {
        give_up(socket, state, waiting, Reason::Neighbour);
    }
}

enum Trouble {
    Obstacle(Obstacle),
    Refused(Refusal),
}

impl From<Obstacle> for Trouble {
    fn from(obstacle: Obstacle) -> Self {
        Self::Obstacle(obstacle)
    }
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

fn refused(socket: &Socket, state: &mut State, refusal: Refusal) -> Obstacle {
    match refusal {
        Refusal::Full => Obstacle::Full,
        Refusal::TooLong => Obstacle::Error(libc::EMSGSIZE),
        Refusal::Away => {
            Reason::Runtime
                .tell(|| "the runtime of this node went away, until it is back".to_string());
            Obstacle::Unserved(Reason::Runtime)
        }
        // What is on its way is so still.
        Refusal::Busy => Obstacle::Unserved(Reason::Runtime),
        Refusal::Over => {
            // What it was to tell, it tells no more.
            state.source = None;
            errors::look(socket, state);
            Obstacle::Unserved(Reason::Runtime)
        }
    }
}

/// A frame that was handed over.
struct Handed {
    token: takt::Token,
    packet: Vec<u8>,
    ends: Option<Ends>,
    /// When, or a moment before.
    at: TaiTime,
    /// Its launch time.
    instant: TaiTime,
}

fn hand_over(
    socket: &Socket,
    fd: c_int,
    state: &mut State,
    content: &Content<'_>,
    request: &Request,
    inside: &Inside,
) -> Result<Handed, Trouble> {
    let options = state.options.as_ref().ok_or(Obstacle::Elsewhere)?;
    let source = source_of(&mut state.source, &mut state.retry_at, inside)?;
    let plan = match content.to {
        To::Way(key) => {
            // What is found for the first time is followed from then on.
            let followed = is_followed(options);
            let watch = |key, used, found, unknown| {
                let unknown = unknown && followed;
                // Before the follower finds it: then it waits for the lock that is held here, and hands over what is kept.
                if unknown {
                    socket.set_holding(true);
                }
                let mut watched = socket.watched(inside);
                watched.way(key, used, found);
                if unknown {
                    watched.look_again(&[key], &[]);
                }
            };
            match state.destinations.way(fd, options, source, key, watch)? {
                Way::Kernel(reason) => return Err(Obstacle::Unserved(reason).into()),
                Way::Runtime {
                    headers,
                    mtu,
                    interface,
                    source,
                    resolved,
                } => {
                    if content.total + headers.packet_header() > mtu {
                        return Err(Obstacle::Error(libc::EMSGSIZE).into());
                    }
                    if !resolved {
                        return Err(Obstacle::Unserved(Reason::Neighbour).into());
                    }
                    Plan::Udp {
                        headers,
                        ends: Ends {
                            interface,
                            source,
                            destination: key.destination,
                        },
                    }
                }
            }
        }
        To::Link(name) => {
            let (plan, key, header) = link_plan(options, source, name, content)?;
            let now = kernel::monotonic();
            let mtu = match state.stations.known(&key, now) {
                Some(found) => found,
                None => {
                    let found = destination::station(fd, source, key)?;
                    let until = now + destination::believed_if_known(options.network);
                    let used = state.stations.remember(key, found, now, until);
                    socket.watched(inside).station(key, used, now);
                    found
                }
            };
            let mtu = mtu.map_err(Obstacle::Unserved)?;
            if content.total > mtu + header {
                return Err(Obstacle::Error(libc::EMSGSIZE).into());
            }
            plan
        }
    };
    let offset = plan.offset();
    state.wanted = offset + content.total;
    let mut buffer = source.buffer(offset + content.total)?;
    memory::gather(&mut buffer[offset..], content.parts).map_err(Obstacle::Error)?;
    let ends = plan.complete(&mut buffer, &mut state.identification)?;
    // Tags, ARP and foreign addresses are not what an endpoint sends.
    if ends.is_none() && !frame::may_leave(&buffer, &*source.endpoint()?) {
        let reason = match frame::is_tagged(&buffer) {
            true => Reason::Tag,
            false => Reason::Frame,
        };
        return Err(Obstacle::Unserved(reason).into());
    }
    let tells = options.report_errors
        || request.stamps != 0 && options.timestamping & timestamping::OPT_TSONLY == 0;
    let packet = if tells { buffer.to_vec() } else { Vec::new() };
    let at = launch::now();
    let launch = match request.untimed {
        None => Some(request.instant),
        Some(when) => when.launch(at),
    };
    let instant = launch.unwrap_or(at);
    let token = source.emit(
        buffer,
        &FrameOptions {
            class: request.class,
            launch,
            deadline: request.is_deadline(options),
        },
    )?;
    Ok(Handed {
        token,
        packet,
        ends,
        at,
        instant,
    })
}

/// What is to be told of a message.
fn wanted(options: &Options, request: &Request) -> Wanted {
    let stamps = request.stamps | options.timestamping & timestamping::OPT_TX_SWHW;
    Wanted::new(
        options.report_errors,
        stamps,
        announce::stamps_as_hardware(),
    )
}

/// Notes what is to be told of a frame.
fn finish(socket: &Socket, state: &mut State, request: &Request, handed: Handed) {
    let Some(options) = &state.options else {
        return;
    };
    let limit = options.receive_bytes;
    let reports = &mut state.reports;
    let number = match request.control.number {
        Some(number) => number,
        None if request.stamps != 0 && options.numbers() => reports.next_number(),
        None => 0,
    };
    let datagram = Datagram {
        launch: match request.untimed {
            Some(_) => handed.instant.as_nanos() as u64,
            None => request.launch,
        },
        // With a deadline, it leaves as soon as it can.
        about: match request.is_deadline(options) {
            true => launch::now(),
            false => handed.instant,
        },
        queued: handed.at,
        // Whether that is too late, the runtime says.
        late: handed.instant < handed.at,
        number,
        packet: handed.packet,
        ends: handed.ends,
    };
    let wanted = wanted(options, request);
    if wanted != Wanted::default() {
        socket.expect_reports();
        let alone = options.timestamping & timestamping::OPT_TSONLY != 0;
        let came = reports.emitted(handed.token, wanted, alone, datagram, limit);
        socket.add_edges(came);
        if reports.awaited() >= LOOK_AT {
            errors::look(socket, state);
        }
    }
}

/// What becomes a frame, and how.
enum Plan {
    Udp {
        headers: frame::Headers,
        ends: Ends,
    },
    /// The program's whole frame.
    Frame,
    /// What is behind this Ethernet header.
    Packet {
        station: [u8; 6],
        destination: [u8; 6],
        protocol: u16,
    },
}

impl Plan {
    /// Where the program's bytes belong.
    fn offset(&self) -> usize {
        match self {
            Self::Udp { headers, .. } => headers.len(),
            Self::Frame { .. } => 0,
            Self::Packet { .. } => ethernet::HEADER_LEN,
        }
    }

    /// Writes what is ours to write around them.
    fn complete(
        self,
        frame: &mut [u8],
        identification: &mut u16,
    ) -> Result<Option<Ends>, Obstacle> {
        match self {
            Self::Udp { headers, ends } => {
                if !headers.emit(frame, *identification) {
                    return Err(Obstacle::Error(libc::EMSGSIZE));
                }
                *identification = identification.wrapping_add(1);
                Ok(Some(ends))
            }
            Self::Frame => Ok(None),
            Self::Packet {
                station,
                destination,
                protocol,
            } => {
                frame::emit_link(frame, station, destination, protocol);
                Ok(None)
            }
        }
    }
}

/// Where a datagram is to go. All of it that hangs on the socket: what is sent is not changed by what is set later.
fn key(options: &Options, control: &Control, name: &[u8], six: bool) -> Result<Key, Obstacle> {
    let destination = match name {
        [] => options.udp.peer,
        name => address::parse(name),
    };
    // Errors, and the kernel has them.
    let odd = || Obstacle::Unserved(Reason::Malformed);
    let destination = destination.ok_or_else(odd)?;
    let bound = options.udp.local.ok_or_else(odd)?;
    let fits = |address: SocketAddr| address.is_ipv4() == destination.is_ipv4();
    if destination.port() == 0
        || !six && destination.is_ipv6()
        || !bound.ip().is_unspecified() && !fits(bound)
        || control
            .source
            .is_some_and(|source| source.is_ipv4() != destination.is_ipv4())
    {
        return Err(odd());
    }
    // For IPv4 the kernel does not look at what is said about IPv6.
    let control = match six && destination.is_ipv4() {
        true => &Control {
            traffic_octet: None,
            hop_limit: None,
            ..*control
        },
        false => control,
    };
    let udp = &options.udp;
    let ip = destination.ip();
    let own = (!bound.ip().is_unspecified()).then_some(bound.ip());
    let of_groups = udp
        .multicast_source
        .filter(|_| ip.is_multicast() && ip.is_ipv4());
    let scope = match destination {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    // As the kernel: the group's interface, or the one for all else.
    let preferred = match ip.is_multicast() {
        true => udp.multicast_interface,
        false => udp.unicast_interface,
    };
    let interface = control.interface.unwrap_or_else(|| {
        [scope, options.interface, preferred]
            .into_iter()
            .find(|interface| *interface != 0)
            .unwrap_or(0)
    });
    Ok(Key {
        destination,
        source: control.source.or(own).or(of_groups.map(IpAddr::V4)),
        port: bound.port(),
        interface,
        mark: options.mark,
        checksum: !udp.no_checksum,
        traffic_octet: control
            .traffic_octet
            .unwrap_or_else(|| options.traffic_octet(ip)),
        hop_limit: control.hop_limit.unwrap_or_else(|| options.hop_limit(ip)),
    })
}

/// Has the kernel choose a port, as it would for a first datagram, so that answers find the socket.
fn bind_if_needed(
    socket: &Socket,
    fd: c_int,
    options: &mut Options,
    six: bool,
) -> Result<(), Obstacle> {
    let unbound = |options: &Options| options.udp.local.is_none_or(|local| local.port() == 0);
    if !unbound(options) {
        return Ok(());
    }
    // It may have an address without a port, which it keeps.
    let name = kernel::local_name(fd).unwrap_or_else(|_| address::any(six).to_vec());
    let late = (libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT);
    let is_late = kernel::option::<c_int>(fd, late.0, late.1).is_ok_and(|late| late != 0);
    if is_late {
        kernel::set_option(fd, late.0, late.1, 0);
    }
    // Fails when another thread was faster, which is as good.
    // SAFETY: the address is as long as it is said to be.
    unsafe { real::bind(fd, name.as_ptr().cast(), name.len() as libc::socklen_t) };
    if is_late {
        kernel::set_option(fd, late.0, late.1, 1);
    }
    socket.set_changed();
    options.udp.local = kernel::local_name(fd)
        .ok()
        .and_then(|name| address::parse(&name));
    match unbound(options) {
        true => Err(Obstacle::Unserved(Reason::Malformed)),
        false => Ok(()),
    }
}

/// How a packet socket's message becomes a frame; whom it is for; and how many of its bytes are a header.
fn link_plan(
    options: &Options,
    source: &Source,
    name: &[u8],
    message: &Content<'_>,
) -> Result<(Plan, Station, usize), Trouble> {
    let name = match name {
        [] => None,
        name => Some(address::parse_link(name).ok_or(Obstacle::Unserved(Reason::Malformed))?),
    };
    let interface = name.map_or(options.interface, |name| name.interface);
    let endpoint = source.endpoint()?;
    let (plan, destination, header) = if options.kind == Kind::Packets {
        // Without a station the kernel has none to send to either.
        let name = name.ok_or(Obstacle::Unserved(Reason::Malformed))?;
        let destination = name.station.ok_or(Obstacle::Unserved(Reason::Malformed))?;
        let plan = Plan::Packet {
            station: endpoint.mac,
            destination,
            protocol: name.protocol,
        };
        (plan, destination, 0)
    } else {
        let mut destination = [0; 6];
        // The first bytes, wherever the program has them.
        if message.total < destination.len() {
            return Err(Obstacle::Unserved(Reason::Malformed).into());
        }
        memory::gather(&mut destination, message.parts).map_err(Obstacle::Error)?;
        (Plan::Frame, destination, ethernet::HEADER_LEN)
    };
    Ok((plan, (interface, destination), header))
}

/// The kernel has sent a datagram of a socket whose datagrams it numbers; null: one without control messages.
pub fn sent_by_kernel(socket: &'static Socket, fd: c_int, message: *const msghdr) {
    process::inside(|inside| {
        let mut state = socket.current(fd, inside)?;
        let mut control = Vec::new();
        if !message.is_null() {
            let header = memory::read(message).ok()?;
            control.resize(abi::control_length(&header), 0);
            memory::read_bytes(&mut control, header.msg_control).ok()?;
        }
        if kernel_numbers(state.options.as_ref()?, &control) {
            let number = state.reports.next_number();
            state.reports.numbered_by_kernel(number);
        }
        Some(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_is_the_class_of_its_number_or_best_effort() {
        for priority in 0..8 {
            assert_eq!(u32::from(class_of(priority).number()), priority);
        }
        for priority in [8, 15, 256, 1 << 16 | 5, u32::MAX] {
            assert_eq!(class_of(priority), TrafficClass::BEST_EFFORT);
        }
    }

    #[test]
    fn a_message_that_cannot_be_read_is_the_kernels() {
        process::start();
        assert!(Message::read(std::ptr::null()).is_none());
        assert!(Message::read(std::ptr::without_provenance(24)).is_none());
        let mut control = [0u8; 24];
        // SAFETY: plain integers and pointers.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        assert!(Message::read(&header).is_none(), "no control messages");
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control.len();
        assert!(Message::read(&header).is_some());
        for (lengths, what) in [((usize::MAX, 0), "control"), ((24, usize::MAX), "parts")] {
            (header.msg_controllen, header.msg_iovlen) = lengths;
            assert!(Message::read(&header).is_none(), "{what}");
        }
        header.msg_iovlen = 1;
        header.msg_iov = std::ptr::without_provenance_mut(8);
        assert!(Message::read(&header).is_none(), "parts that are nowhere");
        header.msg_iovlen = 0;
        header.msg_name = std::ptr::without_provenance_mut(8);
        header.msg_namelen = 16;
        assert!(Message::read(&header).is_none(), "a name that is nowhere");
        header.msg_namelen = u32::MAX;
        assert!(Message::read(&header).is_none(), "a name without end");
    }

    #[test]
    fn a_message_is_read_in_one_piece() {
        process::start();
        let (mut name, mut control) = ([7u8; 16], [9u8; 24]);
        let mut parts = [iovec {
            iov_base: name.as_mut_ptr().cast(),
            iov_len: 5,
        }; 3];
        // SAFETY: plain integers and pointers.
        let mut header: msghdr = unsafe { std::mem::zeroed() };
        (header.msg_name, header.msg_namelen) = (name.as_mut_ptr().cast(), 16);
        (header.msg_control, header.msg_controllen) = (control.as_mut_ptr().cast(), 24);
        (header.msg_iov, header.msg_iovlen) = (parts.as_mut_ptr(), 3);
        let message = Message::read(&header).expect("a message");
        assert_eq!(
            (message.name(), message.control()),
            (&name[..], &control[..])
        );
        assert_eq!((message.total, message.parts.len()), (15, 3));
        assert_eq!(message.parts[2].iov_base, parts[2].iov_base);
    }
}
