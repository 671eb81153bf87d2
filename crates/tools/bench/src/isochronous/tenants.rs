//! Tenants of one node: two talkers, and a hostile one that is there or not.

use std::io;
use std::net::{SocketAddr, UdpSocket};

use clap::Args;
use takt_lab::Lab;

use super::run::{
    Flow, LISTENER_PORT, WARM_UP, introduce, node, preloaded, real_time_lane, socket,
};
use super::sys::{self, SockTxTime, now_ns};
use super::talker;
pub use super::talker::Sent;
use crate::takt::process::{Process, Scratch};
use crate::takt::{PATIENCE, Takt, TaktError};

/// Tenants that talk; the hostile one comes after them.
const TALKERS: usize = 2;
/// Where the hostile tenant sends to: nobody listens.
const NOBODY: u16 = 9;
/// How long the flood goes on before anything is measured.
const HEAD_START: std::time::Duration = std::time::Duration::from_millis(300);
const SECOND: i64 = 1_000_000_000;
/// The first instant of the year 2300, nanoseconds: more than a signed number of 64 bits holds.
const YEAR_2300: u64 = 10_413_792_000 * SECOND as u64;
/// Datagrams with one launch time after another.
const BURST: usize = 64;

/// What the hostile program is told.
#[derive(Clone, Debug, Args)]
pub struct HostileOptions {
    /// Whom to flood
    #[arg(long)]
    pub to: SocketAddr,
    /// Core to stay on
    #[arg(long)]
    pub core: Option<usize>,
}

/// Floods with launch times that make no sense until it is ended: all equal, as far ahead as is taken and further,
/// of the past, negative, of the year 2300. In the talkers' class and in all others.
///
/// # Errors
/// The kernel's.
pub fn hostile(options: &HostileOptions) -> io::Result<()> {
    if let Some(core) = options.core {
        crate::awake::pin_to(core)?;
    }
    let sockets: Vec<UdpSocket> = (0..8)
        .map(|class: i32| {
            let socket = UdpSocket::bind(SocketAddr::from(([0, 0, 0, 0], 0)))?;
            socket.connect(options.to)?;
            socket.set_nonblocking(true)?;
            sys::set(&socket, libc::SOL_SOCKET, libc::SO_PRIORITY, &class)?;
            let how = SockTxTime {
                clockid: libc::CLOCK_TAI,
                flags: 0,
            };
            sys::set(&socket, libc::SOL_SOCKET, libc::SO_TXTIME, &how)?;
            Ok(socket)
        })
        .collect::<io::Result<_>>()?;
    let payload = [0; 1000];
    loop {
        let now = now_ns(libc::CLOCK_TAI);
        let equal = now / SECOND * SECOND + SECOND;
        let far = [now + 59 * SECOND, now + 3600 * SECOND];
        let past = [0, now - 2 * SECOND, -1, i64::MIN];
        let times = [equal, far[0], far[1], past[0], past[1], past[2], past[3]].map(|at| at as u64);
        for time in times.into_iter().chain([YEAR_2300]) {
            let control = (libc::SOL_SOCKET, libc::SCM_TXTIME, &time.to_ne_bytes()[..]);
            for socket in &sockets {
                // What is not taken is not taken.
                let sent = |_: &usize| sys::send(socket, &payload, Some(control)).is_ok();
                let _ = (0..BURST).take_while(sent).count();
            }
        }
    }
}

/// Runs the talkers once, beside the hostile tenant or not: what each saw. The runtime and the talkers are on
/// `cores.0`, the hostile tenant on `cores.1`.
///
/// # Errors
/// When a process cannot be started, fails, or does not end; the error has what it said.
pub fn run(
    takt: &Takt,
    lab: &Lab,
    beside_hostile: bool,
    flow: &Flow,
    cores: (usize, usize),
) -> Result<Vec<Sent>, TaktError> {
    let scratch = Scratch::new()?;
    let _daemon = node(
        takt,
        lab,
        TALKERS + 1,
        (cores.0, &real_time_lane()),
        &scratch,
        None,
    )?;
    let far = lab.container(1, 0);
    let start = |tenant: usize, core: usize, words: &[&str], priority: Option<i32>| {
        let container = lab.container(0, tenant);
        introduce(container, far)?;
        let mut command = preloaded(takt, container, &socket(&scratch, tenant), priority)?;
        command.arg("bench-socket").args(words);
        command.args(["--core", &core.to_string()]);
        let log = scratch.path().join(format!("tenant-{tenant}.log"));
        Process::start(command, &log)
    };
    let mut flood = None;
    if beside_hostile {
        let to = SocketAddr::from((far.address(), NOBODY)).to_string();
        flood = Some(start(TALKERS, cores.1, &["hostile", "--to", &to], None)?);
        std::thread::sleep(HEAD_START);
    }
    let (size, count) = (flow.size.to_string(), (flow.count + WARM_UP).to_string());
    let period = flow.period.as_micros();
    let mut talkers = (0..TALKERS)
        .map(|tenant| {
            // Nobody hears them: what counts is when they leave.
            let to = SocketAddr::from((far.address(), LISTENER_PORT)).to_string();
            let words = ["talker", "--to", &to, "--mode", "launch", "--size", &size];
            // At different instants: on one link, frames for the same one leave one after the other. And not
            // half a period apart: then the one talker would hand over, on the lane's core, as the other's
            // frame is due.
            let phase = (period * tenant as u128 / (2 * TALKERS) as u128).to_string();
            let period = period.to_string();
            let times = [
                "--period-us",
                &period,
                "--phase-us",
                &phase,
                "--count",
                &count,
            ];
            let words = [&words[..], &times[..]].concat();
            start(tenant, cores.0, &words, Some(talker::PRIORITY))
        })
        .collect::<Result<Vec<Process>, TaktError>>()?;
    let patience = flow.duration() + PATIENCE;
    let sent = talkers
        .iter_mut()
        .map(|talker| talker.answer(patience))
        .collect();
    if let Some(flood) = &mut flood {
        flood.check()?;
    }
    sent
}
