//! What the kernel of this host would send by a link: taken at its egress, and given to the runtime, so that it is inside the schedule
//! of the link and not beside it.
//!
//! There it is behind routes, tunnels, packet filters and translation of addresses, whoever has sent it: programs of the host, pods,
//! virtual machines. A program at the egress carries it to a pair of veths, which makes single packets of it; one at their other
//! end hands it over a ring (`others` takes it from there).
//!
//! ```text
//!     pods, host ── routes, netfilter ──► link: program at egress ─┬── the runtime's own, ARP, multicast of IPv6 ──► wire
//!                                                                  └── veth ── program ── ring ──► frame source ──► gates ──► wire
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;

use aya::maps::{Array, HashMap, MapData};
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{ProgramInfo, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use takt::Endpoint;

use crate::counters::{self, OtherCounters};
use crate::error::Error;
use crate::forward::readable;
use crate::others::Others;
use crate::programs::{self, Device, OtherMaps, Returner};
use crate::runtime::{Runtime, TICK};
use crate::sys::{self, Place};

/// Longest packet of a veth.
const LONGEST: u32 = 65535;
/// What the name of the pair's first end begins with, before the number of the interface.
const CARRIER: &str = "takt-out";

/// The runtime's sockets, whose datagrams are inside the schedule already.
struct Own {
    /// By their cookies, as the program has them.
    map: HashMap<MapData, u64, u8>,
    /// Where they send from.
    sources: Vec<SocketAddr>,
    cookies: Vec<u64>,
}

impl Own {
    fn new(ebpf: &mut Ebpf, sources: Vec<SocketAddr>) -> Result<Self, Error> {
        let map = programs::map(ebpf, programs::OWN)?;
        let mut own = Self {
            map: map
                .try_into()
                .map_err(Error::load("open the runtime's sockets"))?,
            sources,
            cookies: Vec::new(),
        };
        own.follow()?;
        Ok(own)
    }

    /// Looks which sockets those are now: a daemon that was started again has others in their place.
    fn follow(&mut self) -> Result<(), Error> {
        let mut now = Vec::new();
        for source in &self.sources {
            now.extend(sys::udp_sockets(*source).map_err(Error::Sockets)?);
        }
        for cookie in now.iter().filter(|cookie| !self.cookies.contains(cookie)) {
            self.map
                .insert(cookie, 1, 0)
                .map_err(Error::load("tell the runtime's sockets"))?;
        }
        for cookie in self.cookies.iter().filter(|cookie| !now.contains(cookie)) {
            // It is there.
            let _ = self.map.remove(cookie);
        }
        self.cookies = now;
        Ok(())
    }
}

/// Whose traffic to take, and for whom.
#[derive(Clone, Debug)]
pub struct UplinkOptions {
    /// The interface that it would leave by.
    pub device: String,
    /// The listener whose endpoint is this interface; `None`: as other applications find the runtime.
    pub socket: Option<PathBuf>,
    /// Where the runtime's own datagrams come from, which are inside the schedule already.
    pub own: Vec<SocketAddr>,
}

/// The programs at a link with a session of its listener.
pub struct Uplink {
    device: Device,
    returner: Returner,
    others: Others,
    counters: Arc<OtherCounters>,
    own: Own,
    reader: Array<MapData, u64>,
    /// Of the program at the link, and of the other one.
    id: u32,
    carried: u32,
    pair: Pair,
    /// As the interface is in the network.
    endpoint: Endpoint,
}

/// The two devices by which packets go from one program to the other. They go with it.
struct Pair {
    carrier: Device,
    end: Device,
}

impl Pair {
    fn names(device: &Device) -> [String; 2] {
        [CARRIER, "takt-in"].map(|end| format!("{end}{}", device.index()))
    }

    /// Those that processes which were killed have left: for this interface, and for such that are not there any more.
    fn left(device: &Device) -> Result<Vec<Device>, Error> {
        let names = sys::names().map_err(Error::system("list the interfaces"))?;
        let is_left = |name: &&String| {
            let number = name.strip_prefix(CARRIER);
            let number = number.and_then(|number| number.parse().ok());
            number.is_some_and(|number| number == device.index() || sys::is_gone(number))
        };
        let left = names.iter().filter(is_left);
        Ok(left.filter_map(|name| Device::find(name).ok()).collect())
    }

    /// Makes them. What is left of others is taken away before.
    fn new(device: &Device) -> Result<Self, Error> {
        let [carrier, end] = Self::names(device);
        for left in Self::left(device)? {
            sys::remove(left.index()).map_err(Error::system("remove a pair of veths"))?;
        }
        // Whatever the interface's longest packet becomes.
        sys::add_pair([&carrier, &end], LONGEST).map_err(Error::system("make a pair of veths"))?;
        let pair = Self {
            carrier: Device::find(&carrier)?,
            end: Device::find(&end)?,
        };
        for device in [&pair.carrier, &pair.end] {
            // Where there is no IPv6 it has none.
            let path = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", device.name);
            let _ = std::fs::write(path, "1");
            sys::set_up(device.index()).map_err(Error::system("take a veth up"))?;
        }
        sys::set_gso_segments(pair.carrier.index(), 1)
            .map_err(Error::system("have packets segmented at a veth"))?;
        sys::leave_checksums(&pair.carrier.name, false)
            .map_err(Error::system("have checksums computed before a veth"))?;
        Ok(pair)
    }

    /// Whether packets come through to this program.
    fn is_whole(&self, program: u32) -> bool {
        let is_up = |device: &Device| sys::link(device.index()).is_ok_and(|link| link.up);
        is_at(&self.end, Place::Ingress, program) && is_up(&self.carrier) && is_up(&self.end)
    }
}

/// Whether a program is at a place of a device that is still there.
fn is_at(device: &Device, place: Place, program: u32) -> bool {
    sys::programs(device.index(), place).is_ok_and(|there| there.contains(&program))
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = sys::remove(self.carrier.index());
    }
}

impl Uplink {
    /// Opens a session with the runtime and attaches the programs. From then on packets are taken; they wait for
    /// [`run`](Self::run).
    ///
    /// # Errors
    /// [`Error`].
    pub fn new(options: &UplinkOptions) -> Result<Self, Error> {
        let device = Device::any(&options.device)?;
        let name = format!("takt uplink {}", device.name);
        let runtime = Runtime::open(name, options.socket.as_deref())?.by_link();
        let endpoint = runtime.endpoint()?;
        if endpoint != endpoint_of(&device, endpoint.network.clone())? {
            return Err(Error::OtherEndpoint(device.name));
        }
        let mac = endpoint.mac;
        let pair = Pair::new(&device)?;
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .map_max_entries(programs::OTHERS, programs::OTHERS_BYTES)
            .map_max_entries(programs::RING, programs::NO_RING)
            .override_global("takt_device", &device.index(), true)
            .override_global("takt_carrier", &pair.carrier.index(), true)
            .override_global("takt_address", &mac, true)
            .load(programs::OBJECT)
            .map_err(Error::load("create BPF maps"))?;
        programs::program(&mut ebpf, programs::RETURN_UPLINK)?;
        let own = Own::new(&mut ebpf, options.own.clone())?;
        let end = programs::program(&mut ebpf, programs::CARRIED)?;
        end.attach_with_options(
            &pair.end.name,
            TcAttachType::Ingress,
            TcAttachOptions::TcxOrder(LinkOrder::first()),
        )
        .map_err(Error::load("attach the program that takes"))?;
        let carried = programs::number(end)?;
        let others = OtherMaps::of(&mut ebpf)?;
        let (uplink, reader) = programs::program_with_reader(&mut ebpf, programs::UPLINK)?;
        // Behind those that look at what leaves, and may drop it.
        uplink
            .attach_with_options(
                &device.name,
                TcAttachType::Egress,
                TcAttachOptions::TcxOrder(LinkOrder::last()),
            )
            .map_err(Error::load("attach the program at the link"))?;
        let id = programs::number(uplink)?;
        let returner = Returner::new(ebpf, [programs::RETURN_UPLINK; 2]);
        let others = Others::new(runtime, others, returner.clone());
        Ok(Self {
            device,
            returner,
            counters: others.counters(),
            others,
            own,
            reader,
            id,
            carried,
            pair,
            endpoint,
        })
    }

    /// Gives the runtime what is taken until `stop` is readable, then takes no more and gives what is left to the link. `sources` tells
    /// from time to time where the runtime's own datagrams come from, if it is known.
    ///
    /// # Errors
    /// [`Error::Detached`] when the device has gone or somebody has taken a program away; the kernel's.
    pub fn run(
        self,
        stop: impl AsFd,
        mut sources: impl FnMut() -> Option<Vec<SocketAddr>>,
    ) -> Result<(), Error> {
        let Self {
            device,
            returner,
            others,
            counters,
            mut own,
            mut reader,
            id,
            carried,
            pair,
            endpoint,
        } = self;
        std::thread::scope(|scope| {
            // Dropped last: what is taken ends when nothing more is.
            let _ending = others.start(scope)?;
            let mut look = || loop {
                let stopped = readable(&stop, TICK)?;
                programs::tell(&mut reader, &counters.all());
                if stopped {
                    return Ok(());
                }
                if !is_at(&device, Place::Egress, id) || !pair.is_whole(carried) {
                    return Err(Error::Detached(device.name.clone()));
                }
                if endpoint != endpoint_of(&device, endpoint.network.clone())? {
                    return Err(Error::OtherEndpoint(device.name.clone()));
                }
                if let Some(now) = sources() {
                    own.sources = now;
                }
                // What the kernel does not tell now it is asked for again soon.
                let _ = own.follow();
            };
            let looked = look();
            returner.unload(programs::UPLINK);
            // When the kernel has done so, what was on its way through the pair is in the ring, and nothing comes there later.
            returner.unload(programs::CARRIED);
            looked
        })
    }
}

/// Any source, of either kind.
fn anybody() -> Vec<(IpAddr, u8)> {
    vec![
        (Ipv4Addr::UNSPECIFIED.into(), 0),
        (Ipv6Addr::UNSPECIFIED.into(), 0),
    ]
}

/// What the listener for a link has to have: the endpoint that the interface is in a network on it. Refused where what leaves there is taken
/// already.
///
/// # Errors
/// [`Error::NoLink`], [`Error::UplinkAttached`], [`Error::Privilege`].
pub fn uplink_endpoint(device: &str, network: String) -> Result<Endpoint, Error> {
    let device = Device::any(device)?;
    // Without the privilege to see that, the other one ends for want of its pair of veths.
    let there = device.programs_at(TcAttachType::Egress);
    let is = |program: &ProgramInfo| programs::is(program, programs::UPLINK);
    if there.is_ok_and(|there| there.iter().any(is)) {
        return Err(Error::UplinkAttached(device.name));
    }
    endpoint_of(&device, network)
}

fn endpoint_of(device: &Device, network: String) -> Result<Endpoint, Error> {
    let link =
        sys::link(device.index()).map_err(Error::system("ask for the address of the interface"))?;
    Ok(Endpoint {
        network,
        mac: link
            .address
            .ok_or_else(|| Error::NoLink(device.name.clone()))?,
        addresses: anybody(),
        mtu: u16::try_from(link.mtu).unwrap_or(u16::MAX),
        vlans: Vec::new(),
    })
}

/// What `takt_uplink` says of an interface where it is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UplinkStatus {
    /// Whether packets are taken: whoever attached it has shown within five seconds that the runtime and it get on.
    pub taking: bool,
    /// Names and numbers of packets.
    pub counters: Vec<(&'static str, u64)>,
}

/// What is at a link: what became of packets by its name; `None`: nobody takes what leaves there. For that nothing has to run.
///
/// # Errors
/// [`Error::NoLink`], [`Error::Privilege`].
pub fn uplink_status(device: &str) -> Result<Option<UplinkStatus>, Error> {
    let device = Device::any(device)?;
    let there = device.programs_at(TcAttachType::Egress)?;
    let Some(program) = there
        .iter()
        .find(|program| programs::is(program, programs::UPLINK))
    else {
        return Ok(None);
    };
    let counts = programs::counts(program, programs::COUNTERS)?;
    let passed = ("untimed", 1);
    let of_program = counters::PROGRAM_COUNTERS[counters::OTHERS..].iter();
    let of_program = of_program.copied().zip(counters::OTHERS..).chain([passed]);
    let of_program = of_program.map(|(name, at)| (name, counts.get(at).copied().unwrap_or(0)));
    let reader = programs::values(program, programs::READER)?;
    let of_process = counters::OTHER_COUNTERS.into_iter().zip(reader);
    let named = of_program.chain(of_process);
    // Nothing there has a launch time, so that there is nothing other.
    let name = |name: &'static str| match name {
        "untimed" => "passed-by-kind",
        name => name.strip_prefix("other-").unwrap_or(name),
    };
    Ok(Some(UplinkStatus {
        taking: programs::is_alive(program)?,
        counters: named.map(|(told, count)| (name(told), count)).collect(),
    }))
}
