//! What the follower finds out for a socket, left for whoever has the socket's lock next. The follower, a thread without
//! priority, never holds that lock for it: a thread of the program with a real-time one would wait for it.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

use crate::destination::{Key, Way};
use crate::options::Options;
use crate::unserved::Reason;

/// A station of a packet socket: the interface and the address.
pub type Station = (u32, [u8; 6]);

/// What was found out.
pub struct News {
    /// The socket's, before it was looked at.
    pub version: u32,
    /// What the kernel says of it.
    pub options: Options,
    /// When.
    pub at: i64,
    /// Ways, with those options.
    pub ways: Vec<(Key, Way)>,
    /// Stations: why the runtime does not reach them, or the longest packet.
    pub stations: Vec<(Station, Result<usize, Reason>)>,
    /// Of those that have been read, the next.
    next: *mut News,
}

impl News {
    pub fn new(version: u32, options: Options, at: i64) -> Self {
        Self {
            version,
            options,
            at,
            ways: Vec::new(),
            stations: Vec::new(),
            next: ptr::null_mut(),
        }
    }

    /// With what earlier ones say that nobody has read.
    fn add(&mut self, earlier: News) {
        if earlier.version == self.version && earlier.options == self.options {
            add(&mut self.ways, earlier.ways);
            add(&mut self.stations, earlier.stations);
        }
    }
}

fn add<K: Copy + Eq + Hash, V>(to: &mut Vec<(K, V)>, earlier: Vec<(K, V)>) {
    let known: HashSet<K> = to.iter().map(|(key, _)| *key).collect();
    to.extend(earlier.into_iter().filter(|(key, _)| !known.contains(key)));
}

/// The latest news of a socket. The follower alone leaves some, and frees what has been read: those who send call no heap,
/// which has a lock as well.
pub struct Mailbox {
    latest: AtomicPtr<News>,
    read: AtomicPtr<News>,
}

impl Mailbox {
    pub const fn new() -> Self {
        Self {
            latest: AtomicPtr::new(ptr::null_mut()),
            read: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Leaves news; the follower's.
    pub fn leave(&self, mut news: Box<News>) {
        // Acquire: partner is the exchange in `Read::drop`.
        let mut read = self.read.swap(ptr::null_mut(), Ordering::Acquire);
        while !read.is_null() {
            // SAFETY: made by `into_raw` below, read by nobody any more, and in one list alone.
            read = unsafe { Box::from_raw(read) }.next;
        }
        // Acquire: what is taken back is this thread's own, or a former follower's.
        let earlier = self.latest.swap(ptr::null_mut(), Ordering::Acquire);
        if !earlier.is_null() {
            // SAFETY: made by `into_raw` below, and taken out.
            news.add(*unsafe { Box::from_raw(earlier) });
        }
        // Release: partner is the exchange in `take`.
        self.latest.store(Box::into_raw(news), Ordering::Release);
    }

    /// Takes them out.
    #[inline]
    pub fn take(&self) -> Option<Read<'_>> {
        if self.latest.load(Ordering::Relaxed).is_null() {
            return None;
        }
        self.take_out()
    }

    /// The same for who has seen some there: another reader may have been faster.
    fn take_out(&self) -> Option<Read<'_>> {
        // Acquire: partner is the store in `leave`.
        let news = self.latest.swap(ptr::null_mut(), Ordering::Acquire);
        let mailbox = self;
        // Not `then_some`: a reading of nothing must not even be dropped.
        (!news.is_null()).then(|| Read { news, mailbox })
    }
}

/// News that are being read.
pub struct Read<'m> {
    news: *mut News,
    mailbox: &'m Mailbox,
}

impl Deref for Read<'_> {
    type Target = News;

    fn deref(&self) -> &News {
        // SAFETY: taken out of the mailbox, and given back by `drop` alone.
        unsafe { &*self.news }
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        let read = &self.mailbox.read;
        let mut head = read.load(Ordering::Relaxed);
        loop {
            // SAFETY: this reader's alone.
            unsafe { (*self.news).next = head };
            // Release: partner is the exchange in `leave`.
            match read.compare_exchange_weak(head, self.news, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

/// What the follower is to find out anew.
#[derive(Default)]
pub struct Watched {
    ways: HashMap<Key, Watch>,
    stations: HashMap<Station, Watch>,
    /// What the kernel said of the socket the last time.
    options: Option<Options>,
}

struct Watch {
    /// When it was used last. Nobody else has it: it has been forgotten.
    used: Arc<AtomicI64>,
    /// When it was found out.
    found: i64,
}

impl Watched {
    pub fn way(&mut self, key: Key, used: Arc<AtomicI64>, found: i64) {
        self.ways.insert(key, Watch { used, found });
    }

    pub fn station(&mut self, station: Station, used: Arc<AtomicI64>, found: i64) {
        self.stations.insert(station, Watch { used, found });
    }

    /// These are to be found out in the next round, however soon that is.
    pub fn look_again(&mut self, ways: &[Key], stations: &[Station]) {
        look_again(&mut self.ways, ways);
        look_again(&mut self.stations, stations);
    }

    /// Whether the kernel says something else of the socket than the last time.
    pub fn see(&mut self, options: &Options) -> bool {
        let news = self.options.as_ref() != Some(options);
        if news {
            self.options = Some(options.clone());
        }
        news
    }

    /// Forgets what nobody has used since `unused`, and lists what was found out before `before`, and will be `now`.
    pub fn due(&mut self, unused: i64, before: i64, now: i64) -> (Vec<Key>, Vec<Station>) {
        (
            due(&mut self.ways, unused, before, now),
            due(&mut self.stations, unused, before, now),
        )
    }
}

fn look_again<K: Eq + Hash>(watched: &mut HashMap<K, Watch>, keys: &[K]) {
    for key in keys {
        if let Some(watch) = watched.get_mut(key) {
            watch.found = i64::MIN;
        }
    }
}

fn due<K: Copy + Eq + Hash>(
    watched: &mut HashMap<K, Watch>,
    unused: i64,
    before: i64,
    now: i64,
) -> Vec<K> {
    watched.retain(|_, watch| {
        Arc::strong_count(&watch.used) > 1 && watch.used.load(Ordering::Relaxed) >= unused
    });
    let due = watched
        .iter_mut()
        .filter(|(_, watch)| watch.found <= before);
    due.map(|(key, watch)| {
        watch.found = now;
        *key
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        use std::os::fd::AsRawFd;
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        Options::read(socket.as_raw_fd()).expect("a socket")
    }

    fn news(version: u32, options: &Options, stations: &[(u8, usize)]) -> Box<News> {
        let mut news = News::new(version, options.clone(), 0);
        let station = |&(last, mtu): &(u8, usize)| ((1, [0, 0, 0, 0, 0, last]), Ok(mtu));
        news.stations = stations.iter().map(station).collect();
        Box::new(news)
    }

    fn read(mailbox: &Mailbox) -> Vec<(u8, usize)> {
        let news = mailbox.take().expect("news");
        let stations = news.stations.iter();
        stations
            .map(|(station, mtu)| (station.1[5], mtu.expect("reached")))
            .collect()
    }

    #[test]
    fn what_nobody_has_read_is_in_later_news_unless_the_socket_has_changed() {
        let (mailbox, options) = (Mailbox::new(), options());
        assert!(mailbox.take().is_none());
        mailbox.leave(news(1, &options, &[(1, 10), (2, 20)]));
        mailbox.leave(news(1, &options, &[(2, 21), (3, 30)]));
        assert_eq!(read(&mailbox), [(2, 21), (3, 30), (1, 10)]);
        assert!(mailbox.take().is_none());
        // Another reader was faster.
        assert!(mailbox.take_out().is_none());
        mailbox.leave(news(1, &options, &[(1, 11)]));
        mailbox.leave(news(2, &options, &[(2, 22)]));
        assert_eq!(read(&mailbox), [(2, 22)]);
    }

    #[test]
    fn readers_and_the_follower_share_a_mailbox() {
        let (mailbox, options) = (Mailbox::new(), options());
        let seen: usize = std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let mut seen = 0;
                        loop {
                            let Some(news) = mailbox.take() else {
                                std::thread::yield_now();
                                continue;
                            };
                            seen += news.stations.len();
                            if news.version == 0 {
                                return seen;
                            }
                        }
                    })
                })
                .collect();
            for number in 0..200u8 {
                mailbox.leave(news(1, &options, &[(number, 1)]));
            }
            for _ in &readers {
                while !mailbox.latest.load(Ordering::Relaxed).is_null() {
                    std::thread::yield_now();
                }
                mailbox.leave(news(0, &options, &[]));
            }
            let ends = readers.into_iter();
            ends.map(|reader| reader.join().expect("no panic")).sum()
        });
        assert_eq!(seen, 200, "each once");
    }

    #[test]
    fn what_is_unused_or_forgotten_is_followed_no_more() {
        let mut watched = Watched::default();
        let used: Vec<Arc<AtomicI64>> = (0..3).map(|_| Arc::default()).collect();
        for (number, used) in used.iter().enumerate() {
            used.store(50, Ordering::Relaxed);
            watched.station((number as u32, [0; 6]), used.clone(), 0);
        }
        used[0].store(5, Ordering::Relaxed);
        let kept = used.into_iter().take(2).collect::<Vec<_>>();
        assert_eq!(watched.due(10, 0, 60).1, [(1, [0; 6])]);
        assert!(watched.due(10, 50, 70).1.is_empty(), "found out at 60");
        assert_eq!(watched.due(10, 60, 80).1, [(1, [0; 6])]);
        watched.look_again(&[], &[(1, [0; 6]), (7, [0; 6])]);
        assert_eq!(watched.due(10, 0, 90).1, [(1, [0; 6])]);
        assert!(watched.due(10, 0, 95).1.is_empty(), "found out at 90");
        drop(kept);
        assert!(watched.due(10, 100, 110).1.is_empty());
    }
}
