//! The eBPF programs at a device: loading, attaching, and what others can see of them.
//!
//! Two programs, by the kernel's tcx (Linux 6.6): one that takes, which goes with this process however it ends, and the guard,
//! which stays until it is detached or the device goes. So what is required is required also while nobody takes. A third one is at
//! the other end, in the pod, where times by `CLOCK_REALTIME` still are: it makes them times by `CLOCK_TAI`, and stays where the guard does.
//! A fourth one is in the pod's cgroup, if that is named, and goes with this process.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use aya::maps::{Array, HashMap, Map, MapData, MapInfo, PerCpuArray, RingBuf};
use aya::programs::links::LinkOrder;
use aya::programs::tc::TcAttachOptions;
use aya::programs::{
    CgroupAttachMode, CgroupSockopt, ProgramInfo, SchedClassifier, TcAttachType, TestRun,
    TestRunOptions,
};
use aya::{Ebpf, EbpfLoader};
use rustix::time::{ClockId, DynamicClockId, Timespec, clock_gettime, clock_gettime_dynamic};

use crate::error::Error;
use crate::{Options, sys};

/// The compiled `bpf/takt_veth.bpf.c`.
pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/takt_veth.bpf.o"));

const TAKE: &str = "takt_take";
const GUARD: &str = "takt_guard";
const REALTIME: &str = "takt_realtime";
const RETURN: &str = "takt_return";
const RETURN_OTHER: &str = "takt_return_other";
pub(crate) const UPLINK: &str = "takt_uplink";
pub(crate) const CARRIED: &str = "takt_carried";
pub(crate) const RETURN_UPLINK: &str = "takt_return_uplink";
const PROBE: &str = "takt_probe";
const CLOCK: &str = "takt_clock";
pub(crate) const RING: &str = "takt_ring";
pub(crate) const COUNTERS: &str = "takt_counters";
const GUARDED: &str = "takt_guarded";
pub(crate) const READER: &str = "takt_reader";
const AHEAD: &str = "takt_ahead";
const REALTIMES: &str = "takt_realtimes";
pub(crate) const OTHERS: &str = "takt_others";
const ALIVE: &str = "takt_alive";
/// After so long without a sign packets are the kernel's (`HANGS` of the program).
pub(crate) const HANGS: Duration = Duration::from_secs(5);
const OUT: &str = "takt_out";
const ELSEWHERE: &str = "takt_elsewhere";
const TCP: &str = "takt_tcp";
pub(crate) const OWN: &str = "takt_own";

/// Bytes of the ring: some thousand packets of a usual MTU, twenty thousand short ones.
const RING_BYTES: u32 = 4 << 20;
/// The same of what has no launch time: a queue that it would not outgrow at a switch either, 500 packets of a usual MTU.
pub(crate) const OTHERS_BYTES: u32 = 1 << 20;
/// Where nothing is taken by one, the least that a ring can have.
pub(crate) const NO_RING: u32 = 4 << 10;

/// A device, by the name and number that it has had from the beginning.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    index: u32,
}

impl Device {
    /// Whatever it is.
    pub(crate) fn any(name: &str) -> Result<Self, Error> {
        let index = sys::index(name).map_err(|_| Error::NoLink(name.to_owned()))?;
        Ok(Self {
            name: name.to_owned(),
            index,
        })
    }

    /// Its number.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// The host's end of a veth.
    pub(crate) fn find(name: &str) -> Result<Self, Error> {
        let index = sys::index(name).map_err(|_| Error::NoDevice(name.to_owned()))?;
        let driver = match sys::driver(name) {
            // It has none, as the loopback interface.
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => String::new(),
            driver => driver.map_err(Error::system("ask for the driver of the device"))?,
        };
        match driver == "veth" {
            true => Ok(Self {
                name: name.to_owned(),
                index,
            }),
            false => Err(Error::NotVeth {
                device: name.to_owned(),
                driver,
            }),
        }
    }

    /// Whether somebody takes what comes there.
    fn is_taken(&self) -> Result<bool, Error> {
        Ok(self.programs()?.iter().any(|program| is(program, TAKE)))
    }

    /// The programs at its ingress, in their order.
    fn programs(&self) -> Result<Vec<ProgramInfo>, Error> {
        self.programs_at(TcAttachType::Ingress)
    }

    pub(crate) fn programs_at(&self, place: TcAttachType) -> Result<Vec<ProgramInfo>, Error> {
        let asked = SchedClassifier::query_tcx(&self.name, place);
        // Afterwards: it may have gone while we asked.
        if sys::index(&self.name).ok() != Some(self.index) {
            return Err(Error::Detached(self.name.clone()));
        }
        let (_, programs) = asked.map_err(Error::find("ask for the programs of the device"))?;
        Ok(programs)
    }
}

/// The pod's end of a veth.
struct Pod {
    /// As it was found. Another path to it is looked for when that has gone.
    namespace: sys::Namespace,
    /// The device's number. Its name is the pod's to change.
    index: u32,
    /// The host's end.
    host: Device,
}

impl Pod {
    fn find(device: &Device) -> Result<Self, Error> {
        match sys::other_end(device.index) {
            Ok(Some(end)) => Ok(Self {
                namespace: end.namespace,
                index: end.index,
                host: device.clone(),
            }),
            Ok(None) => Err(Error::OtherEnd(
                device.name.clone(),
                "no network namespace with a name or a process has it".to_owned(),
            )),
            Err(error) => Err(Error::OtherEnd(device.name.clone(), error.to_string())),
        }
    }

    /// Runs a function in the pod's network namespace.
    fn inside<T: Send>(
        &self,
        run: impl FnOnce(&Device) -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        let namespace = match self.namespace.open() {
            Ok(namespace) => namespace,
            Err(_) => self.found_anew()?,
        };
        let there = || {
            let name =
                sys::name(self.index).map_err(|_| Error::Detached(self.host.name.clone()))?;
            run(&Device {
                name,
                index: self.index,
            })
        };
        sys::inside(namespace.as_fd(), there).map_err(Error::system(
            "go to the network namespace of the other end",
        ))?
    }

    /// The namespace by another path: of another process, say.
    fn found_anew(&self) -> Result<OwnedFd, Error> {
        let found = Self::find(&self.host).ok();
        let opened = found.and_then(|pod| pod.namespace.open().ok());
        opened.ok_or_else(|| Error::Detached(self.host.name.clone()))
    }

    /// Ours at its egress.
    fn programs(&self) -> Result<Vec<ProgramInfo>, Error> {
        let mut programs = self.inside(|device| device.programs_at(TcAttachType::Egress))?;
        programs.retain(|program| is(program, REALTIME));
        Ok(programs)
    }

    /// Takes one away that stays when a process ends.
    fn detach(&self, program: &ProgramInfo) -> Result<(), Error> {
        let descriptor = program
            .fd()
            .map_err(Error::load("open the program at the pod's end"))?;
        self.inside(|device| {
            sys::detach(device.index, sys::Place::Egress, descriptor.as_fd())
                .map_err(Error::system("detach the program at the pod's end"))
        })
    }
}

/// The program at the pod's end.
struct Realtime {
    pod: Pod,
    ahead: Array<MapData, u64>,
    /// Of the program.
    id: u32,
}

impl Realtime {
    /// Attaches it, in the place of one that an earlier process has left.
    fn new(ebpf: &mut Ebpf, device: &Device, required: bool) -> Result<Self, Error> {
        let pod = Pod::find(device)?;
        let mut ahead: Array<MapData, u64> = map(ebpf, AHEAD)?
            .try_into()
            .map_err(Error::load("open the clocks' difference"))?;
        set_ahead(&mut ahead)?;
        let before = pod.programs()?;
        let program = program(ebpf, REALTIME)?;
        let id = number(program)?;
        pod.inside(|device| {
            if !required {
                let first = TcAttachOptions::TcxOrder(LinkOrder::first());
                program
                    .attach_with_options(&device.name, TcAttachType::Egress, first)
                    .map_err(Error::load("attach the program at the pod's end"))?;
                return Ok(());
            }
            let descriptor = program
                .fd()
                .map_err(Error::load("load the program at the pod's end"))?;
            sys::attach(device.index, sys::Place::Egress, descriptor.as_fd())
                .map_err(Error::system("attach the program at the pod's end"))
        })?;
        for program in before {
            pod.detach(&program)?;
        }
        Ok(Self { pod, ahead, id })
    }
}

/// Tells the program at the pod's end by how much `CLOCK_TAI` is ahead of `CLOCK_REALTIME`.
fn set_ahead(ahead: &mut Array<MapData, u64>) -> Result<(), Error> {
    ahead
        .set(0, realtime_behind_tai(), 0)
        .map_err(Error::load("tell the clocks' difference"))
}

/// Tells the program whether TCP is taken.
fn choose_tcp(tcp: &mut Array<MapData, u32>) -> Result<(), Error> {
    tcp.set(0, u32::from(sys::lets_tcp_pass_unseen()), 0)
        .map_err(Error::load("choose whether TCP is taken"))
}

/// By how much `CLOCK_TAI` is ahead of `CLOCK_REALTIME`, nanoseconds: always whole seconds.
fn realtime_behind_tai() -> u64 {
    const SECOND: i64 = 1_000_000_000;
    let nanos = |now: Timespec| now.tv_sec * SECOND + now.tv_nsec;
    let Ok(tai) = clock_gettime_dynamic(DynamicClockId::Tai) else {
        return 0;
    };
    let ahead = nanos(tai) - nanos(clock_gettime(ClockId::Realtime));
    let ahead = (ahead + SECOND / 2).div_euclid(SECOND) * SECOND;
    u64::try_from(ahead).unwrap_or(0)
}

/// What holds packets without a launch time.
pub(crate) struct OtherMaps {
    pub(crate) ring: RingBuf<MapData>,
    /// Destinations of which nothing is taken.
    pub(crate) elsewhere: HashMap<MapData, [u8; 24], u8>,
    /// When somebody has taken what there was, nanoseconds of `CLOCK_MONOTONIC`.
    alive: Array<MapData, u64>,
    /// Octets that were taken out of the ring, by share.
    out: Array<MapData, u64>,
}

impl OtherMaps {
    pub(crate) fn of(ebpf: &mut Ebpf) -> Result<Self, Error> {
        let mut maps = Self {
            ring: map(ebpf, OTHERS)?
                .try_into()
                .map_err(Error::load("map the ring"))?,
            elsewhere: map(ebpf, ELSEWHERE)?
                .try_into()
                .map_err(Error::load("open the destinations"))?,
            alive: map(ebpf, ALIVE)?
                .try_into()
                .map_err(Error::load("open the time of the last turn"))?,
            out: map(ebpf, OUT)?
                .try_into()
                .map_err(Error::load("open the shares of the ring"))?,
        };
        maps.lives();
        Ok(maps)
    }

    /// So many octets of a share have been taken out of the ring, since the beginning.
    pub(crate) fn taken_out(&mut self, share: usize, octets: u64) {
        // There is room for all of them.
        let _ = self.out.set(share as u32, octets, 0);
    }

    /// What is taken gets on, now. Without that for some seconds the programs leave it to the kernel.
    pub(crate) fn lives(&mut self) {
        // There is room for it, and without it everything is the kernel's.
        let _ = self.alive.set(0, now(), 0);
    }
}

/// Keeps the pod's kernel from giving its veth what is no whole frame: packets of several segments, which would be too long for one, and
/// checksums to be finished, which may be anywhere behind headers of the pod's own.
struct Whole {
    pod: Pod,
    /// What it had before.
    segments: u32,
    checksums: bool,
}

impl Whole {
    fn new(device: &Device) -> Result<Self, Error> {
        let pod = Pod::find(device)?;
        let (segments, checksums) = pod.inside(|device| {
            let link = sys::link(device.index).map_err(Error::system(
                "ask how packets are segmented at the pod's end",
            ))?;
            let checksums = sys::leaves_checksums(&device.name)
                .map_err(Error::system("ask who computes checksums at the pod's end"))?;
            Ok((link.gso_segments, checksums))
        })?;
        // Whatever of it is done is undone when this is dropped.
        let whole = Self {
            pod,
            segments,
            // An attachment that was killed has left both as we do.
            checksums: checksums || segments == 1,
        };
        whole.pod.inside(|device| {
            sys::set_gso_segments(device.index, 1)
                .map_err(Error::system("have packets segmented at the pod's end"))?;
            sys::leave_checksums(&device.name, false)
                .map_err(Error::system("have checksums computed at the pod's end"))
        })?;
        Ok(whole)
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let segments = match self.segments {
            1 => sys::GSO_SEGMENTS,
            segments => segments,
        };
        // The pod may be gone.
        let _ = self.pod.inside(|device| {
            let _ = sys::set_gso_segments(device.index, segments);
            let _ = sys::leave_checksums(&device.name, self.checksums);
            Ok(())
        });
    }
}

/// The programs as those have them who give frames back.
#[derive(Clone)]
pub(crate) struct Returner {
    ebpf: Arc<Mutex<Ebpf>>,
    /// What returns a frame, and what returns one that would be taken again.
    programs: [&'static str; 2],
}

impl Returner {
    pub(crate) fn new(ebpf: Ebpf, programs: [&'static str; 2]) -> Self {
        let ebpf = Arc::new(Mutex::new(ebpf));
        Self { ebpf, programs }
    }

    fn ebpf(&self) -> MutexGuard<'_, Ebpf> {
        self.ebpf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a frame go on as if the device had just received it, without a launch time. Whether the kernel has it.
    pub(crate) fn give_back(&self, frame: &[u8]) -> bool {
        self.run(self.programs[0], frame)
    }

    /// The same of one that had none, and would be taken again.
    pub(crate) fn give_back_other(&self, frame: &[u8]) -> bool {
        self.run(self.programs[1], frame)
    }

    /// Takes a program away from where it is attached.
    pub(crate) fn unload(&self, name: &str) {
        let mut ebpf = self.ebpf();
        let program = ebpf.program_mut(name);
        if let Some(Ok(program)) = program.map(<&mut SchedClassifier>::try_from) {
            // Goes with its links. If it is not there any more, the better.
            let _ = program.unload();
        }
    }

    fn run(&self, name: &str, frame: &[u8]) -> bool {
        let ebpf = self.ebpf();
        let program = ebpf.program(name);
        let Some(Ok(program)) = program.map(<&SchedClassifier>::try_from) else {
            return false;
        };
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        program
            .test_run(options)
            .is_ok_and(|result| result.return_value == 0)
    }
}

/// The programs, attached. The one that takes is detached when this is dropped, the guard is not.
pub(crate) struct Attached {
    device: Device,
    /// Keeps the program that takes attached, and has the one that returns.
    ebpf: Returner,
    ring: RingBuf<MapData>,
    /// Until somebody takes them.
    others: Option<OtherMaps>,
    /// Whether TCP is taken with them.
    tcp: Option<Array<MapData, u32>>,
    _whole: Option<Whole>,
    /// What this process tells others.
    reader: Array<MapData, u64>,
    counters: PerCpuArray<MapData, u64>,
    /// Of the program that takes.
    id: u32,
    /// At the pod's end, or why there is nothing.
    realtime: Result<Realtime, Error>,
}

impl Attached {
    /// Attaches.
    pub(crate) fn new(device: Device, options: &Options) -> Result<Self, Error> {
        let &Options { required, all, .. } = options;
        let mut ebpf = EbpfLoader::new()
            .btf(None)
            .map_max_entries(RING, RING_BYTES)
            .map_max_entries(OTHERS, if all { OTHERS_BYTES } else { NO_RING })
            .override_global("takt_all", &u32::from(all), true)
            .override_global("takt_device", &device.index, true)
            .override_global("takt_required", &u32::from(required), true)
            .load(OBJECT)
            .map_err(Error::load("create BPF maps"))?;
        probe(&mut ebpf)?;
        let there = device.programs()?;
        if there.iter().any(|program| is(program, TAKE)) {
            return Err(Error::Attached(device.name));
        }
        let guarded = there.iter().any(|program| is(program, GUARD));
        if guarded && !required {
            return Err(Error::Guarded(device.name));
        }
        let attached = Self::with_guard(ebpf, device.clone(), options, guarded);
        // What does not start is not to drop what it would have taken. Another one that has come meanwhile needs the guard.
        if attached.is_err() && !guarded && device.is_taken().is_ok_and(|is| !is) {
            let _ = lift(&device);
        }
        attached
    }

    /// The same, with a guard if there is to be one and none is there.
    fn with_guard(
        mut ebpf: Ebpf,
        device: Device,
        options: &Options,
        guarded: bool,
    ) -> Result<Self, Error> {
        let &Options { required, all, .. } = options;
        program(&mut ebpf, RETURN)?;
        if all {
            program(&mut ebpf, RETURN_OTHER)?;
        }
        let realtime = match Realtime::new(&mut ebpf, &device, required) {
            Err(error) if required => return Err(error),
            realtime => realtime,
        };
        let whole = all.then(|| Whole::new(&device)).transpose()?;
        let tcp = all.then(|| -> Result<_, Error> {
            let mut tcp: Array<MapData, u32> = map(&mut ebpf, TCP)?
                .try_into()
                .map_err(Error::load("open the choice of TCP"))?;
            choose_tcp(&mut tcp)?;
            Ok(tcp)
        });
        let tcp = tcp.transpose()?;
        if let Some(cgroup) = &options.cgroup {
            lend_clock(&mut ebpf, cgroup)?;
        }
        // As late as can be: until what takes is there too, it drops all.
        if required && !guarded {
            let guard = program(&mut ebpf, GUARD)?;
            let descriptor = guard.fd().map_err(Error::load("load the guard"))?;
            sys::attach(device.index, sys::Place::Ingress, descriptor.as_fd())
                .map_err(Error::system("attach the guard"))?;
        }
        let (take, reader) = program_with_reader(&mut ebpf, TAKE)?;
        take.attach_with_options(
            &device.name,
            TcAttachType::Ingress,
            TcAttachOptions::TcxOrder(LinkOrder::first()),
        )
        .map_err(Error::load("attach the program that takes"))?;
        let id = number(take)?;
        // Two that came at the same time: neither stays.
        let taking = device.programs()?;
        if taking.iter().filter(|program| is(program, TAKE)).count() != 1 {
            return Err(Error::Attached(device.name));
        }
        Ok(Self {
            ring: map(&mut ebpf, RING)?
                .try_into()
                .map_err(Error::load("map the ring"))?,
            reader,
            counters: map(&mut ebpf, COUNTERS)?
                .try_into()
                .map_err(Error::load("open the counters"))?,
            others: all.then(|| OtherMaps::of(&mut ebpf)).transpose()?,
            tcp,
            _whole: whole,
            device,
            ebpf: Returner::new(ebpf, [RETURN, RETURN_OTHER]),
            id,
            realtime,
        })
    }

    /// What has been taken.
    pub(crate) fn ring(&mut self) -> &mut RingBuf<MapData> {
        &mut self.ring
    }

    /// Why times by `CLOCK_REALTIME` are not taken; `None`: they are.
    pub(crate) fn without_realtime(&self) -> Option<&Error> {
        self.realtime.as_ref().err()
    }

    /// Takes no more; what is in the ring stays there.
    pub(crate) fn detach(&mut self) {
        self.ebpf.unload(TAKE);
    }

    /// Whether the programs are where they were attached to; tells the one at the pod's end what the clocks are.
    pub(crate) fn check(&mut self) -> Result<(), Error> {
        let there = self.device.programs()?;
        if !there.iter().any(|program| program.id() == self.id) {
            return Err(Error::Detached(self.device.name.clone()));
        }
        if let Some(tcp) = &mut self.tcp {
            choose_tcp(tcp)?;
        }
        let Ok(realtime) = &mut self.realtime else {
            return Ok(());
        };
        set_ahead(&mut realtime.ahead)?;
        let there = realtime.pod.programs()?;
        match there.iter().any(|program| program.id() == realtime.id) {
            true => Ok(()),
            false => Err(Error::Detached(self.device.name.clone())),
        }
    }

    /// Whether TCP without a launch time is taken.
    pub(crate) fn takes_tcp(&self) -> bool {
        let tcp = self.tcp.as_ref();
        tcp.is_some_and(|tcp| tcp.get(&0, 0).is_ok_and(|is| is != 0))
    }

    /// What gives frames back.
    pub(crate) fn returner(&self) -> Returner {
        self.ebpf.clone()
    }

    /// What holds packets without a launch time, once, if they are taken.
    pub(crate) fn take_others(&mut self) -> Option<OtherMaps> {
        self.others.take()
    }

    /// What the program that takes has counted, in the order of [`PROGRAM_COUNTERS`](crate::counters::PROGRAM_COUNTERS).
    pub(crate) fn counted(&self) -> Vec<u64> {
        sums(&self.counters).unwrap_or_default()
    }

    /// Tells others what this process counts, in the order of [`READER_COUNTERS`](crate::counters::READER_COUNTERS) and what is
    /// behind those.
    pub(crate) fn tell<'a>(&mut self, counters: impl IntoIterator<Item = &'a u64>) {
        tell(&mut self.reader, counters);
    }
}

/// Tells others what a process counts.
pub(crate) fn tell<'a>(
    reader: &mut Array<MapData, u64>,
    counters: impl IntoIterator<Item = &'a u64>,
) {
    for (at, count) in (0..).zip(counters) {
        // There is room for all, and nobody's packet depends on it.
        let _ = reader.set(at, count, 0);
    }
}

/// Whether the kernel tells the times of `CLOCK_TAI` apart, by a call that knows that clock from the version on that does.
fn probe(ebpf: &mut Ebpf) -> Result<(), Error> {
    let program = program(ebpf, PROBE).map_err(|error| match error {
        Error::Load { told, .. } => Error::Kernel(told),
        error => error,
    })?;
    // It must be IP; what, is of no interest.
    let mut frame = [0; 60];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    let mut options = TestRunOptions::new();
    options.data_in = Some(&frame);
    let result = program
        .test_run(options)
        .map_err(Error::load("run a program that tries the kernel"))?;
    match result.return_value as i32 {
        0 => Ok(()),
        error => Err(Error::Kernel(
            std::io::Error::from_raw_os_error(-error).to_string(),
        )),
    }
}

/// Lets programs of a cgroup have `CLOCK_TAI` for their launch times without a capability, as long as the programs are loaded.
fn lend_clock(ebpf: &mut Ebpf, cgroup: &Path) -> Result<(), Error> {
    let refused = |told: String| Error::Cgroup {
        path: cgroup.to_owned(),
        told,
    };
    let directory = File::open(cgroup).map_err(|error| refused(error.to_string()))?;
    let program: &mut CgroupSockopt = ebpf
        .program_mut(CLOCK)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| missing(CLOCK))?;
    program
        .load()
        .map_err(Error::load("load the program of the cgroup"))?;
    // A link, which stands beside those of others.
    match program.attach(directory, CgroupAttachMode::Single) {
        Ok(_) => Ok(()),
        Err(error) if takt_xdp::errno(&error) == Some(libc::EBADF) => {
            Err(refused("it is no directory of cgroup v2".to_owned()))
        }
        Err(error) => Err(Error::load("attach the program of the cgroup")(error)),
    }
}

/// A program of the object, loaded.
pub(crate) fn program<'e>(
    ebpf: &'e mut Ebpf,
    name: &str,
) -> Result<&'e mut SchedClassifier, Error> {
    let program: &mut SchedClassifier = ebpf
        .program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| missing(name))?;
    program
        .load()
        .map_err(Error::load("load the eBPF programs"))?;
    Ok(program)
}

/// The number of a program that is loaded.
pub(crate) fn number(program: &SchedClassifier) -> Result<u32, Error> {
    let info = program.info();
    Ok(info.map_err(Error::load("look at the program"))?.id())
}

/// A program of the object, loaded, by which others find what a process counts.
pub(crate) fn program_with_reader<'e>(
    ebpf: &'e mut Ebpf,
    name: &str,
) -> Result<(&'e mut SchedClassifier, Array<MapData, u64>), Error> {
    let reader = match map(ebpf, READER)? {
        Map::Array(reader) => reader,
        _ => return Err(missing(READER)),
    };
    let program = program(ebpf, name)?;
    let descriptor = program
        .fd()
        .map_err(Error::load("load the eBPF programs"))?;
    sys::bind(descriptor.as_fd(), reader.fd().as_fd())
        .map_err(Error::system("bind the counters to the program"))?;
    let reader = Map::Array(reader)
        .try_into()
        .map_err(Error::load("open the counters"))?;
    Ok((program, reader))
}

pub(crate) fn map(ebpf: &mut Ebpf, name: &str) -> Result<Map, Error> {
    ebpf.take_map(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Error {
    Error::Load {
        action: "use the eBPF object",
        told: format!("it has no {name}: build again"),
    }
}

pub(crate) fn is(program: &ProgramInfo, name: &str) -> bool {
    program.name_as_str() == Some(name)
}

/// What is at a device, as anybody can see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Counters of the program that takes, if it is there, and of its process.
    pub(crate) taking: Option<(Vec<u64>, Vec<u64>)>,
    /// What the guard has dropped, if it is there.
    pub(crate) guarded: Option<u64>,
    /// Counters of the program at the pod's end, if it is there.
    pub(crate) realtimes: Option<Vec<u64>>,
}

/// Looks at a device.
pub(crate) fn look(device: &Device) -> Result<Seen, Error> {
    let mut seen = Seen::default();
    for program in device.programs()? {
        if is(&program, TAKE) {
            let counters = counts(&program, COUNTERS)?;
            seen.taking = Some((counters, values(&program, READER)?));
        } else if is(&program, GUARD) {
            seen.guarded = Some(counts(&program, GUARDED)?.iter().sum());
        }
    }
    if let Ok(pod) = Pod::find(device)
        && let Some(program) = pod.programs()?.first()
    {
        seen.realtimes = Some(counts(program, REALTIMES)?);
    }
    Ok(seen)
}

/// Takes away what stays: the guard, and the program at the pod's end. Whether it was there.
pub(crate) fn lift(device: &Device) -> Result<bool, Error> {
    let mut lifted = false;
    for program in device.programs()?.iter().filter(|p| is(p, GUARD)) {
        let descriptor = program.fd().map_err(Error::load("open the guard"))?;
        sys::detach(device.index, sys::Place::Ingress, descriptor.as_fd())
            .map_err(Error::system("detach the guard"))?;
        lifted = true;
    }
    // Of one that takes it goes with its process.
    if !device.is_taken()?
        && let Ok(pod) = Pod::find(device)
    {
        for program in pod.programs()? {
            pod.detach(&program)?;
            lifted = true;
        }
    }
    Ok(lifted)
}

/// A map of a program that is loaded, by its name.
fn find(program: &ProgramInfo, name: &str) -> Result<MapData, Error> {
    let ids = program
        .map_ids()
        .map_err(Error::load("look at the program"))?
        .unwrap_or_default();
    for id in ids {
        let info = MapInfo::from_id(id).map_err(Error::find("look at the program's maps"))?;
        if info.name_as_str() == Some(name) {
            return MapData::from_id(id).map_err(Error::find("open the program's maps"));
        }
    }
    Err(Error::Load {
        action: "read the counters",
        told: format!("the program has no map {name}: it is of another version of takt"),
    })
}

pub(crate) fn counts(program: &ProgramInfo, name: &str) -> Result<Vec<u64>, Error> {
    let map = Map::PerCpuArray(find(program, name)?);
    let array: PerCpuArray<_, u64> = map.try_into().map_err(Error::load("read the counters"))?;
    sums(&array)
}

/// Counters by processor, added up.
fn sums(array: &PerCpuArray<MapData, u64>) -> Result<Vec<u64>, Error> {
    array
        .iter()
        .map(|counts| {
            Ok(counts
                .map_err(Error::load("read the counters"))?
                .iter()
                .sum())
        })
        .collect()
}

/// By the clock of the programs (bpf_ktime_get_ns).
fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Whether a program takes packets, as it decides itself.
pub(crate) fn is_alive(program: &ProgramInfo) -> Result<bool, Error> {
    let sign = values(program, ALIVE)?.first().copied().unwrap_or(0);
    Ok(Duration::from_nanos(now().saturating_sub(sign)) < HANGS)
}

pub(crate) fn values(program: &ProgramInfo, name: &str) -> Result<Vec<u64>, Error> {
    let map = Map::Array(find(program, name)?);
    let array: Array<_, u64> = map.try_into().map_err(Error::load("read the counters"))?;
    array
        .iter()
        .map(|count| count.map_err(Error::load("read the counters")))
        .collect()
}
