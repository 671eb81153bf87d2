//! An accelerated socket: what we know of it, what of it is on its way, what it has to be told.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use crate::abi::SockTxtime;
use crate::announce::{self, Mode};
use crate::destination::{self, Destinations, Stations};
use crate::follower;
use crate::held::Held;
use crate::kernel;
use crate::kind::Kind;
use crate::news::{Mailbox, News, Watched};
use crate::options::Options;
use crate::process::Inside;
use crate::reports::Reports;
use crate::runtime::{self, Source};
use crate::table;
use crate::transmit;

/// How long what the kernel has said is believed, in nanoseconds: options may change through another
/// process that has the same socket, and descriptors be closed where nobody looks.
const BELIEVED: i64 = 1_000_000_000;
/// How long, while another thread asks about once a second, if it gets to that.
const FOLLOWED: i64 = 60_000_000_000;

/// A mutex that a forked child can take whatever the parent's threads were doing.
pub struct ForkLock<T>(UnsafeCell<Mutex<T>>);

// SAFETY: the mutex guards the value; `forget` alone goes past it, in a child that has one thread.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    pub const fn new(value: T) -> Self {
        Self(UnsafeCell::new(Mutex::new(value)))
    }

    /// Waits for it. By [`Inside`], nobody waits for himself.
    pub fn lock(&self, _: &Inside) -> MutexGuard<'_, T> {
        // SAFETY: see `Sync`.
        let mutex = unsafe { &*self.0.get() };
        // A panic is a defect; then the state is as good as it can be had.
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it when nobody else has it, without being waited for by those who leave it: that would cost them a system
    /// call.
    pub fn lock_patiently(&self, _: &Inside) -> MutexGuard<'_, T> {
        const AGAIN: i64 = 20_000;
        loop {
            // SAFETY: see `Sync`.
            let mutex = unsafe { &*self.0.get() };
            match mutex.try_lock() {
                Ok(guard) => return guard,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => kernel::pause(AGAIN),
            };
        }
    }

    /// In a forked child: it is free, and `value` in it. What was in it is the parent's and not dropped.
    pub fn forget(&self, value: T) {
        // SAFETY: nobody else is here (`process::after_fork`), and nothing is lost but memory.
        unsafe { ptr::write(self.0.get(), Mutex::new(value)) };
    }
}

/// What is behind a socket's lock.
#[derive(Default)]
pub struct State {
    /// What the kernel says of it, if it could be asked.
    pub options: Option<Options>,
    /// When it was asked, by the monotonic clock.
    asked_at: i64,
    /// Where its frames go, while there is a runtime that takes them.
    pub source: Option<Source>,
    /// When a source may be opened again.
    pub retry_at: i64,
    /// Ways to where it sends.
    pub destinations: Destinations,
    /// Stations that a packet socket sends to: whether the runtime reaches them.
    pub stations: Stations,
    /// What it is told on the error queue.
    pub reports: Reports,
    /// What waits for a next hop to tell its hardware address.
    pub held: Held,
    /// How long the frame was for which there was no room.
    pub wanted: usize,
    /// The next IPv4 identification.
    pub identification: u16,
}

/// An accelerated socket. Never freed: used again for another one when no descriptor leads here any more.
pub struct Socket {
    /// Descriptors that lead here; 0: nobody's, or being given up.
    descriptors: AtomicU32,
    /// Nobody's and empty.
    free: AtomicBool,
    /// Its number in the kernel; 0: not known yet.
    cookie: AtomicU64,
    /// The kernel is to be asked before the next use.
    stale: AtomicBool,
    /// Changes when the kernel has to be asked again.
    version: AtomicU32,
    /// The clock of its transmission times, if the kernel has another one or none; else -1.
    clock: AtomicI32,
    /// `SOF_TXTIME_*` of such times.
    flags: AtomicU32,
    /// It has or may have something to tell on the error queue.
    reporting: AtomicBool,
    /// A send found no room and did not wait, and no wait has told of room since.
    full: AtomicBool,
    /// The kernel numbers its datagrams (`SOF_TIMESTAMPING_OPT_ID`).
    numbering: AtomicBool,
    /// The descriptor by which it was used last.
    descriptor: AtomicI32,
    /// How many entries its error queue has had: an edge for each.
    edges: AtomicU64,
    /// How many of them an `epoll_wait` has told of.
    told_edges: AtomicU64,
    /// Messages wait for a next hop: the follower hands them over.
    holding: AtomicBool,
    /// What the follower has found out.
    news: Mailbox,
    /// What it is to find out.
    watched: ForkLock<Watched>,
    state: ForkLock<State>,
    next: AtomicPtr<Socket>,
}

static SOCKETS: AtomicPtr<Socket> = AtomicPtr::new(ptr::null_mut());
/// Sockets that are `reporting`, and those that are `full`.
static TELLING: AtomicU32 = AtomicU32::new(0);

/// All of the process, some of which may be nobody's.
pub fn all() -> impl Iterator<Item = &'static Socket> {
    let mut at = SOCKETS.load(Ordering::Acquire); // Partner: `Socket::claim`.
    std::iter::from_fn(move || {
        // SAFETY: null, or a socket, which is leaked and stays where it is.
        let socket: &'static Socket = unsafe { at.as_ref() }?;
        at = socket.next.load(Ordering::Acquire);
        Some(socket)
    })
}

/// Whether any socket of the process has something to tell that the kernel does not know: if not, waiting is the C
/// library's alone.
#[inline]
pub fn any_telling() -> bool {
    TELLING.load(Ordering::Relaxed) != 0
}

/// In a forked child: sockets stay, with what is on its way the parent's.
pub fn after_fork() {
    for socket in all() {
        socket.state.forget(State::default());
        socket.watched.forget(Watched::default());
        socket.holding.store(false, Ordering::Relaxed);
        socket.stale.store(true, Ordering::Relaxed);
    }
}

impl Socket {
    /// An unused one, counted for one descriptor.
    pub fn claim(_: &Inside) -> &'static Self {
        let used_before = all().find(|socket| {
            socket
                .free
                .compare_exchange(true, false, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        });
        if let Some(socket) = used_before {
            socket.set_stale();
            socket.set_times(None);
            socket.descriptors.store(1, Ordering::Release);
            return socket;
        }
        let socket: &'static Self = Box::leak(Box::new(Self {
            descriptors: AtomicU32::new(1),
            free: AtomicBool::new(false),
            cookie: AtomicU64::new(0),
            stale: AtomicBool::new(true),
            version: AtomicU32::new(0),
            clock: AtomicI32::new(-1),
            flags: AtomicU32::new(0),
            reporting: AtomicBool::new(false),
            full: AtomicBool::new(false),
            numbering: AtomicBool::new(false),
            descriptor: AtomicI32::new(-1),
            edges: AtomicU64::new(0),
            told_edges: AtomicU64::new(0),
            holding: AtomicBool::new(false),
            news: Mailbox::new(),
            watched: ForkLock::new(Watched::default()),
            state: ForkLock::new(State::default()),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let pointer = ptr::from_ref(socket).cast_mut();
        let mut head = SOCKETS.load(Ordering::Relaxed);
        loop {
            socket.next.store(head, Ordering::Relaxed);
            // Release: partner is the load in `all`.
            match SOCKETS.compare_exchange_weak(head, pointer, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return socket,
                Err(now) => head = now,
            }
        }
    }

    /// Counts one more descriptor. False: it is given up already.
    pub fn retain(&self) -> bool {
        self.descriptors
            .try_update(Ordering::Acquire, Ordering::Relaxed, |count| {
                (count != 0).then_some(count + 1)
            })
            .is_ok()
    }

    /// Whether no more than one descriptor leads here.
    pub fn is_last(&self) -> bool {
        self.descriptors.load(Ordering::Relaxed) <= 1
    }

    /// A descriptor less; with the last one the socket is given up. What is on its way is sent all the same.
    pub fn release(&self) {
        if self.descriptors.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        // By a signal handler that interrupted a call of ours, perhaps one on this very socket, it is not
        // given up but lost: a few hundred bytes, and a source that its session holds open.
        let emptied = crate::process::inside(|inside| {
            let state = std::mem::take(&mut *self.lock(inside));
            self.set_reporting(false);
            self.set_full(false);
            self.numbering.store(false, Ordering::Relaxed);
            transmit::count_held(state);
            self.set_holding(false);
            self.cookie.store(0, Ordering::Relaxed);
            *self.watched.lock(inside) = Watched::default();
            drop(self.news.take());
        });
        if emptied.is_some() {
            self.free.store(true, Ordering::Release); // Partner: `claim`.
        }
    }

    /// Whether messages wait for a next hop, or did lately.
    pub fn is_holding(&self) -> bool {
        self.holding.load(Ordering::Relaxed)
    }

    /// See [`is_holding`](Self::is_holding).
    pub fn set_holding(&self, holding: bool) {
        self.holding.store(holding, Ordering::Relaxed);
    }

    /// What the follower is to find out anew.
    pub fn watched(&self, inside: &Inside) -> MutexGuard<'_, Watched> {
        self.watched.lock(inside)
    }

    /// Leaves what the follower has found out.
    pub fn leave(&self, news: News) {
        self.news.leave(Box::new(news));
    }

    /// Takes over what the follower has left.
    fn take_news(&self, state: &mut State) {
        let Some(news) = self.news.take() else {
            return;
        };
        // The program may have set another option since, or closed the socket and made another one.
        if state.options.is_none()
            || self.version() != news.version
            || !self.renew_options(state, &news.options, news.at)
        {
            return;
        }
        for (key, way) in &news.ways {
            let until = news.at + destination::believed(way, news.options.network);
            state.destinations.renew(key, *way, until);
        }
        for (station, found) in &news.stations {
            let until = news.at + destination::believed_if_known(news.options.network);
            state.stations.renew(station, *found, until);
        }
    }

    /// Its state.
    pub fn lock(&self, inside: &Inside) -> MutexGuard<'_, State> {
        self.state.lock(inside)
    }

    /// The kernel is to be asked again: an option or an address has changed.
    pub fn set_stale(&self) {
        self.set_changed();
        self.stale.store(true, Ordering::Relaxed);
    }

    /// An option or an address has changed, as is known here.
    pub fn set_changed(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes whenever options or addresses may have: what was read before is not to be taken afterwards.
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Acquire)
    }

    /// Its transmission times, of which the kernel knows nothing, or by another clock. `None`: the kernel knows.
    pub fn set_times(&self, times: Option<SockTxtime>) {
        let (clock, flags) = times.map_or((-1, 0), |times| (times.clockid, times.flags));
        self.flags.store(flags, Ordering::Relaxed);
        self.clock.store(clock, Ordering::Relaxed);
    }

    /// See [`set_times`](Self::set_times).
    pub fn times(&self) -> Option<SockTxtime> {
        let clockid = self.clock.load(Ordering::Relaxed);
        let flags = self.flags.load(Ordering::Relaxed);
        (clockid >= 0).then_some(SockTxtime { clockid, flags })
    }

    /// Whether it has something to tell on the error queue, or may have.
    #[inline]
    pub fn is_reporting(&self) -> bool {
        self.reporting.load(Ordering::Relaxed)
    }

    fn set_reporting(&self, reporting: bool) {
        set_telling(&self.reporting, reporting);
    }

    /// Whether a send found no room, and no wait has told of room since.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    /// See [`is_full`](Self::is_full).
    pub fn set_full(&self, full: bool) {
        set_telling(&self.full, full);
    }

    /// Whether a wait on it may have something to tell that the kernel does not know.
    #[inline]
    pub fn is_telling(&self) -> bool {
        self.is_reporting() || self.is_full()
    }

    /// The same, of a wait for room or of another one.
    #[inline]
    pub fn is_telling_for(&self, room: bool) -> bool {
        self.is_reporting() || room && self.is_full()
    }

    /// From now on it has something to tell.
    pub fn expect_reports(&self) {
        self.set_reporting(true);
    }

    /// Whether the kernel numbers the datagrams that it sends.
    #[inline]
    pub fn is_numbering(&self) -> bool {
        self.numbering.load(Ordering::Relaxed)
    }

    /// How many entries its error queue has had.
    pub fn edges(&self) -> u64 {
        self.edges.load(Ordering::Relaxed)
    }

    /// How many of them an edge-triggered wait has told of.
    pub fn told_edges(&self) -> u64 {
        self.told_edges.load(Ordering::Relaxed)
    }

    /// Such a wait tells of so many.
    pub fn tell_edges(&self, edges: u64) {
        self.told_edges.store(edges, Ordering::Relaxed);
    }

    /// Its error queue has had so many more.
    pub fn add_edges(&self, count: u64) {
        if count != 0 {
            self.edges.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// A descriptor that leads here, as far as is known.
    pub fn descriptor(&self) -> Option<c_int> {
        let latest = self.descriptor.load(Ordering::Relaxed);
        if table::leads_to(latest, self) {
            return Some(latest);
        }
        // It was closed, and the socket is open by another one, or nobody's.
        if self.descriptors.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let other = table::find(self)?;
        self.descriptor.store(other, Ordering::Relaxed);
        Some(other)
    }

    /// What the kernel says of it now, by a descriptor that leads here.
    pub fn read_options(&self, fd: c_int) -> Option<Options> {
        let options = Options::read(fd)?;
        Some(match self.times() {
            Some(times) => options.with_times(&times),
            None => options,
        })
    }

    /// Its state, as old as it is. `None`: the descriptor leads here no more.
    pub fn known(&'static self, fd: c_int, inside: &Inside) -> Option<MutexGuard<'static, State>> {
        let mut state = self.lock(inside);
        self.take_news(&mut state);
        table::leads_to(fd, self).then_some(state)
    }

    /// As [`known`](Self::known), for a thread that is not to be a burden to those who send.
    pub fn known_patiently(
        &'static self,
        fd: c_int,
        inside: &Inside,
    ) -> Option<MutexGuard<'static, State>> {
        let mut state = self.state.lock_patiently(inside);
        self.take_news(&mut state);
        table::leads_to(fd, self).then_some(state)
    }

    /// Takes what the kernel has said just now. False: it is of another socket.
    fn renew_options(&self, state: &mut State, options: &Options, at: i64) -> bool {
        let same = |old: &Options| old.cookie == options.cookie;
        if !state.options.as_ref().is_none_or(same) {
            self.set_stale();
            return false;
        }
        if state.options.as_ref() == Some(options) {
            state.asked_at = at;
            return true;
        }
        state.destinations.forget_all();
        state.stations.forget_all();
        self.set_reporting(options.reports() || state.reports.are_due());
        self.numbering.store(options.numbers(), Ordering::Relaxed);
        let numbered = state.options.as_ref().is_some_and(Options::numbers);
        if options.numbers() && !numbered {
            state.reports.restart_numbers();
        }
        self.cookie.store(options.cookie, Ordering::Relaxed);
        state.options = Some(options.clone());
        state.asked_at = at;
        true
    }

    /// Its state, with what the kernel says of it being recent. `None`: the descriptor leads here no more, or
    /// never should have.
    pub fn current(
        &'static self,
        fd: c_int,
        inside: &Inside,
    ) -> Option<MutexGuard<'static, State>> {
        let mut state = self.lock(inside);
        if !table::leads_to(fd, self) {
            return None;
        }
        self.descriptor.store(fd, Ordering::Relaxed);
        self.take_news(&mut state);
        let believed = match follower::is_running() {
            true => FOLLOWED,
            false => BELIEVED,
        };
        if self.stale.swap(false, Ordering::Relaxed)
            || state.options.is_none()
            || kernel::monotonic() - state.asked_at > believed
        {
            let options = self.read_options(fd);
            let now = kernel::monotonic();
            if !options.is_some_and(|options| self.renew_options(&mut state, &options, now)) {
                // Another socket under this number: it was closed where nobody looked.
                drop(state);
                table::remove(fd);
                return None;
            }
        }
        Some(state)
    }
}

fn set_telling(flag: &AtomicBool, value: bool) {
    if flag.swap(value, Ordering::Relaxed) != value {
        if value {
            TELLING.fetch_add(1, Ordering::Relaxed);
            crate::epoll::changed();
            // Threads that wait already are to look, too.
            crate::epoll::wake_all();
        } else {
            TELLING.fetch_sub(1, Ordering::Relaxed);
            crate::epoll::changed();
        }
    }
}

/// Why a socket is not accelerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdopted {
    /// It is none that we take.
    Unfit,
    /// There is no runtime, and the program is not to run without.
    NoRuntime,
}

/// The accelerated socket that a descriptor leads to, also if it has become one by another descriptor.
pub fn of(fd: c_int, inside: &Inside) -> Option<&'static Socket> {
    table::lookup(fd).or_else(|| join(fd, inside))
}

/// Notes that a descriptor leads to an accelerated socket, if one has its number in the kernel.
fn join(fd: c_int, inside: &Inside) -> Option<&'static Socket> {
    let cookie = kernel::option::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()?;
    let is_it = |socket: &Socket| socket.cookie.load(Ordering::Relaxed) == cookie;
    let socket = all().find(|socket| is_it(socket) && socket.retain())?;
    // It may have been given up meanwhile, and be another one.
    if !is_it(socket) || !table::insert(fd, socket) {
        socket.release();
        return None;
    }
    crate::epoll::forget_all(inside);
    Some(socket)
}

/// Makes a descriptor an accelerated socket, if it is one of those that we take and has a clock for
/// transmission times; opens the way to the runtime, so that the first datagram need not wait for that.
///
/// `times`: of which the kernel does not know; such a socket is none without a runtime.
///
/// # Errors
/// [`NotAdopted`].
pub fn adopt(fd: c_int, times: Option<SockTxtime>, inside: &Inside) -> Result<(), NotAdopted> {
    let options = Options::read(fd).ok_or(NotAdopted::Unfit)?;
    if times.is_none() {
        options.clock.ok_or(NotAdopted::Unfit)?;
    }
    let socket = Socket::claim(inside);
    socket.set_times(times);
    if !table::insert(fd, socket) {
        socket.release();
        return Err(NotAdopted::Unfit);
    }
    crate::epoll::forget_all(inside);
    table::forget_all_known();
    let mut state = socket.current(fd, inside).ok_or(NotAdopted::Unfit)?;
    state.source = Source::open(inside);
    follower::start();
    state.retry_at = kernel::monotonic() + runtime::RETRY;
    let missing = state.source.is_none();
    drop(state);
    if missing && (announce::mode() == Mode::Required || times.is_some()) {
        table::remove(fd);
        return Err(NotAdopted::NoRuntime);
    }
    Ok(())
}

/// Makes a UDP socket an accelerated one, of which datagrams may be snapped to a cycle. The way to the runtime is opened by the
/// first one that is. False: it is none, or there is no place for it.
pub fn adopt_for_grid(fd: c_int, inside: &Inside) -> bool {
    let options = Options::read(fd);
    if !options.is_some_and(|options| matches!(options.kind, Kind::Udp { .. })) {
        return false;
    }
    let socket = Socket::claim(inside);
    if !table::insert(fd, socket) {
        socket.release();
        return false;
    }
    crate::epoll::forget_all(inside);
    follower::start();
    true
}

/// Before descriptors are closed, perhaps by the end of the process: waits a moment for next hops to tell their addresses.
/// What was handed over, the runtime sends after the end of the process, as the kernel would.
pub fn settle(closes: impl Fn(c_int) -> bool, inside: &Inside) {
    let begun = kernel::monotonic();
    for socket in all() {
        if let Some(fd) = socket.descriptor().filter(|fd| closes(*fd)) {
            transmit::settle_held(socket, fd, begun, inside);
        }
    }
}

/// At the end of the process: what is held now is nobody's any more.
pub fn give_up(inside: &Inside) {
    for socket in all() {
        transmit::give_up_held(socket, &mut socket.lock(inside));
    }
}

/// Whether the kernel has been told of transmission times of a socket. Of those by `CLOCK_REALTIME`, whose
/// number is 0, that cannot be seen unless they are deadlines or errors are reported.
pub fn has_transmission_times(fd: c_int) -> bool {
    transmission_times(fd) != SockTxtime::default()
}

/// What the kernel has been told of them; nothing is all zero.
pub fn transmission_times(fd: c_int) -> SockTxtime {
    kernel::option(fd, libc::SOL_SOCKET, libc::SO_TXTIME).unwrap_or_default()
}
