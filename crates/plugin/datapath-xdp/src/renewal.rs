//! An interface that was removed, and is there again: its sockets and its program went with it, even if its index is the one
//! that it had. They are made anew by a thread
//! of their own, beside the lanes, whose ports take them over between two frames.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use takt_datapath::stack::{Interface, StackError};
use takt_datapath::{Health, OpenError, PortRequest};

use crate::Probed;
use crate::attachment::lock;
use crate::config::XdpConfig;
use crate::port::Bound;
use crate::reservation::Reservation;

/// Between two attempts to open an interface that is there again.
const AGAIN: Duration = Duration::from_secs(1);
/// So long it is waited for lanes to take over what was made for them, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What a datapath, its ports and those who look after its link have in common.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) config: XdpConfig,
    probed: Mutex<Arc<Probed>>,
    berths: Mutex<Vec<Weak<Berth>>>,
    attempt: Mutex<Attempt>,
}

/// The last attempt to open the interface again.
#[derive(Debug, Default)]
struct Attempt {
    under_way: bool,
    /// When it was refused, and why.
    refused: Option<(Instant, String)>,
}

/// Where a port finds what was made anew for it, and leaves what it had before.
#[derive(Debug)]
pub(crate) struct Berth {
    pub(crate) request: PortRequest,
    /// Its address, which stays its own while there is no interface.
    pub(crate) reservation: Arc<Reservation>,
    is_there: AtomicBool,
    new: Mutex<Option<Bound>>,
    old: Mutex<Option<Bound>>,
}

impl Berth {
    pub(crate) fn new(request: PortRequest, reservation: Arc<Reservation>) -> Arc<Self> {
        Arc::new(Self {
            request,
            reservation,
            is_there: AtomicBool::new(false),
            new: Mutex::default(),
            old: Mutex::default(),
        })
    }

    /// Whether there is something to take over.
    #[inline]
    pub(crate) fn is_there(&self) -> bool {
        // Acquire: pairs with the store in `offer`.
        self.is_there.load(Ordering::Acquire)
    }

    fn offer(&self, new: Bound) {
        *lock(&self.new) = Some(new);
        self.is_there.store(true, Ordering::Release);
    }

    /// What is there to be taken over. Nobody holds the lock for long.
    pub(crate) fn take(&self) -> Option<Bound> {
        let new = lock(&self.new).take();
        self.is_there.store(false, Ordering::Release);
        new
    }

    /// What is not used any more: closing it takes longer than a lane has.
    pub(crate) fn leave(&self, old: Bound) {
        let before = lock(&self.old).replace(old);
        drop(before);
    }
}

impl Site {
    pub(crate) fn new(config: XdpConfig, probed: Probed) -> Arc<Self> {
        Arc::new(Self {
            config,
            probed: Mutex::new(Arc::new(probed)),
            berths: Mutex::default(),
            attempt: Mutex::default(),
        })
    }

    /// The interface as it is at present.
    pub(crate) fn probed(&self) -> Arc<Probed> {
        lock(&self.probed).clone()
    }

    /// A port's berth: it takes part in what comes.
    pub(crate) fn add(&self, berth: &Arc<Berth>) {
        let mut berths = lock(&self.berths);
        berths.retain(|berth| berth.strong_count() > 0);
        berths.push(Arc::downgrade(berth));
    }

    /// The interface, and a part of it for each port. Nothing is changed if one of them cannot have its part.
    /// `offered` is called when ports have something to take over.
    fn open_again(&self, offered: impl FnOnce(&Probed)) -> Result<(), OpenError> {
        let next_hops = Arc::clone(self.probed().attachment.next_hops());
        let probed = Arc::new(Probed::find(&self.config, Some(next_hops))?);
        let berths: Vec<_> = lock(&self.berths)
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let parts = berths.iter().map(|berth| {
            Bound::open(
                &self.config,
                &probed,
                &berth.request,
                Arc::clone(&berth.reservation),
            )
        });
        let parts: Vec<Bound> = parts.collect::<Result<_, _>>()?;
        for (berth, part) in berths.iter().zip(parts) {
            berth.offer(part);
        }
        *lock(&self.probed) = Arc::clone(&probed);
        offered(&probed);
        let since = Instant::now();
        while berths.iter().any(|berth| berth.is_there()) && since.elapsed() < PATIENCE {
            std::thread::sleep(LOOK_EVERY);
        }
        for berth in &berths {
            let old = lock(&berth.old).take();
            drop(old);
        }
        Ok(())
    }
}

type Changed = Box<dyn Fn() + Send>;

/// The interface's link. Clones look at the same.
#[derive(Clone)]
pub(crate) struct Link(Arc<Watch>);

struct Watch {
    site: Arc<Site>,
    interface: Mutex<Interface>,
    changed: Arc<Mutex<Changed>>,
}

impl Link {
    /// Fails only where nothing is followed any more.
    pub(crate) fn watch(site: &Arc<Site>, changed: Changed) -> Result<Self, StackError> {
        let changed = Arc::new(Mutex::new(changed));
        let interface = follow(&site.probed(), &changed)?;
        Ok(Self(Arc::new(Watch {
            site: Arc::clone(site),
            interface: Mutex::new(interface),
            changed,
        })))
    }

    /// Opens the interface again.
    fn renew(&self) {
        let Watch {
            site,
            interface,
            changed,
        } = &*self.0;
        let name = &site.config.interface;
        let opened = site.open_again(|probed| {
            // Fails only where nothing is followed any more.
            if let Ok(watched) = follow(probed, changed) {
                *lock(interface) = watched;
            }
            tracing::info!(interface = %name, ifindex = probed.device.ifindex, "the interface is there again, and in use");
            // Whoever looks wakes the lanes.
            lock(changed)();
        });
        let mut attempt = lock(&site.attempt);
        attempt.under_way = false;
        attempt.refused = opened
            .err()
            .map(|error| (Instant::now(), error.to_string()));
        drop(attempt);
        lock(changed)();
    }

    /// Why nothing passes an interface that was removed. If there is one of its name, it is opened.
    fn removed(&self) -> String {
        let site = &self.0.site;
        let name = &site.config.interface;
        if takt_xdp::index(name).is_none() {
            return format!(
                "the interface {name} has been removed: it is used again when there is one of this name"
            );
        }
        let mut attempt = lock(&site.attempt);
        let again = |at: &Instant| at.elapsed() >= AGAIN;
        if !attempt.under_way && attempt.refused.as_ref().is_none_or(|(at, _)| again(at)) {
            let this = self.clone();
            let thread = std::thread::Builder::new().name("takt-xdp-open".into());
            match thread.spawn(move || this.renew()) {
                Ok(_) => attempt.under_way = true,
                Err(error) => attempt.refused = Some((Instant::now(), error.to_string())),
            }
        }
        match &attempt.refused {
            Some((_, why)) => {
                format!("the interface {name} is there again, and cannot be used: {why}")
            }
            None => format!("the interface {name} is there again, and is being opened"),
        }
    }
}

fn follow(probed: &Probed, changed: &Arc<Mutex<Changed>>) -> Result<Interface, StackError> {
    let changed = Arc::clone(changed);
    let next_hops = probed.attachment.next_hops();
    next_hops.on_interface_change(probed.device.ifindex, move |_| lock(&changed)())
}

impl Health for Link {
    fn fault(&self) -> Option<String> {
        let gone = self.0.site.probed().attachment.is_gone();
        let state = lock(&self.0.interface).state().filter(|_| !gone);
        let name = &self.0.site.config.interface;
        match state {
            None => Some(self.removed()),
            Some(state) if !state.up => Some(format!(
                "the interface {name} is down or has no carrier: `ip link set {name} up`, or look after its cable"
            )),
            Some(_) => None,
        }
    }
}
