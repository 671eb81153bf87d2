//! `takt preload`: runs a program with the socket preload in front of its C library.

mod program;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use self::program::Loader;
use crate::failure::Failure;

/// The library's file.
const LIBRARY: &str = "libtakt_preload.so";
/// The directory with a library for each C library, beside the library or around it: `scripts/preload.sh` makes it.
const LIBRARIES: &str = "takt-preload";
/// Below it. glibc's loader puts the name of its own directory of libraries here (`ld.so(8)`), where links to the library
/// for glibc are; musl's loader takes it as it is written, and this is the directory with the library for musl. So one
/// `LD_PRELOAD` serves programs of either that start each other.
const LOADERS_CHOICE: &str = "$LIB";
/// Where to find it, if not beside this program or in the `lib` next to its directory.
const LIBRARY_VARIABLE: &str = "TAKT_PRELOAD_LIBRARY";
/// What the dynamic loader loads before everything else.
const LOADER_VARIABLE: &str = "LD_PRELOAD";
/// What the library is to do.
const MODE_VARIABLE: &str = "TAKT_PRELOAD";
/// Whether instants of departure stand for hardware time stamps.
const HARDWARE_VARIABLE: &str = "TAKT_PRELOAD_HWTSTAMP";
/// To which cycles datagrams without a transmission time are snapped.
const GRID_VARIABLE: &str = "TAKT_PRELOAD_GRID";

const HELP: &str = "\
Datagrams that the program sends with a transmission time (SO_TXTIME, SCM_TXTIME) leave at that time, by way
of the runtime of this node; everything else is as without. Programs that it starts are run with the preload,
too. Programs of glibc and of musl (Alpine's) have a library each, which their loader finds. Statically linked
programs and programs in Go cannot be preloaded and are refused: `takt veth attach` serves those.

Environment:
  TAKT_PRELOAD_LIBRARY  the library; if not set, libtakt_preload.so beside `takt` or in ../lib

Examples:
  takt preload --hwtstamp -- isochron send --interface eth0 --txtime ...
  takt preload --required -- python3 talker.py
  takt preload --grid 1ms+250us,port=5001 -- ./publisher
  takt preload --all -- iperf3 --udp --client 10.0.0.2
  takt preload --socket /run/takt/line.sock -- ./talker";

/// Runs a program with the socket preload.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Preload {
    /// Socket of the runtime for applications [default: $TAKT_SOCKET, or /run/takt/takt.sock]
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Fail the program's calls when there is no runtime, instead of leaving datagrams to the kernel
    #[arg(long)]
    required: bool,
    /// Answer programs that insist on hardware time stamps: where the interface has none, they get the
    /// instants at which the runtime sent
    #[arg(long)]
    hwtstamp: bool,
    /// Give UDP datagrams that name no time one: the next instant of TAI that is OFFSET behind a whole multiple of CYCLE. With
    /// `to=ADDRESS[/LENGTH]`, `port=PORT`, `class=CLASS`: those alone; `lead=TIME` [default: 500us]: at least so far ahead. May be
    /// given several times: the first rule that is for a datagram holds
    #[arg(long, value_name = "CYCLE[+OFFSET][,KEY=VALUE...]", value_parser = grid)]
    grid: Vec<String>,
    /// Send the program's other UDP datagrams by way of the runtime as well, as soon as their class may: they keep to the gates and
    /// the priority of a schedule. What the runtime does not reach (this machine itself, what is longer than the MTU) is
    /// the kernel's. `--grid now,port=PORT` for some of them
    #[arg(long)]
    all: bool,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Preload {
    pub fn run(self) -> Result<(), Failure> {
        let library = library()?;
        let (name, arguments) = self
            .command
            .split_first()
            .ok_or_else(|| Failure::Other("there is no command to run".into()))?;
        let program = program::find(name)?;
        let library = for_loader(library, program::check(&program)?, &program)?;
        let mut command = Command::new(&program);
        command
            .arg0(name)
            .args(arguments)
            .env(LOADER_VARIABLE, in_front(&library)?);
        if let Some(socket) = &self.socket {
            command.env(takt::SOCKET_VARIABLE, socket);
        }
        if self.required {
            command.env(MODE_VARIABLE, "required");
        }
        if self.hwtstamp {
            command.env(HARDWARE_VARIABLE, "on");
        }
        let all = self.all.then(|| "now".to_owned());
        let rules: Vec<String> = self.grid.into_iter().chain(all).collect();
        if !rules.is_empty() {
            command.env(GRID_VARIABLE, rules.join(";"));
        }
        // Returns only if it fails.
        let error = command.exec();
        Err(Failure::Other(format!(
            "cannot run {}: {error}; name a program that this user may run, by its path or one that is in PATH",
            program.display()
        )))
    }
}

/// A rule as it is written, which the preload will read.
fn grid(text: &str) -> Result<String, takt::grid::BadRule> {
    let _: takt::grid::Rule = text.parse()?;
    Ok(text.to_owned())
}

/// The library's path.
///
/// # Errors
/// When it is not where it was named to be, or nowhere that it is looked for.
pub fn library() -> Result<PathBuf, Failure> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE).filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        return absolute(&path).ok_or_else(|| {
            Failure::Other(format!(
                "there is no library at {}: set {LIBRARY_VARIABLE} to {LIBRARY}",
                path.display()
            ))
        });
    }
    let directory = std::env::current_exe()
        .map_err(Failure::io("find the path of this program"))?
        .parent()
        .map(Path::to_owned)
        .unwrap_or_default();
    // The last one is where Debian has libraries.
    let multiarch = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    let places = ["", "../lib", &multiarch].map(|place| directory.join(place).join(LIBRARY));
    places.iter().find_map(|path| absolute(path)).ok_or_else(|| {
        Failure::Other(format!(
            "there is no {LIBRARY} beside {} or in its ../lib: install it (package takt-preload), or set \
             {LIBRARY_VARIABLE} to its path",
            directory.join("takt").display()
        ))
    })
}

/// What `LD_PRELOAD` names: the library for the loader that loads it, where there is one for each.
fn for_loader(library: PathBuf, loader: Loader, program: &Path) -> Result<PathBuf, Failure> {
    let directory = library.parent().unwrap_or(Path::new("/"));
    let libraries = match directory.ends_with(LIBRARIES) {
        true => directory.to_owned(),
        false => directory.join(LIBRARIES),
    };
    let for_musl = libraries.join(LOADERS_CHOICE).join(LIBRARY);
    match for_musl.is_file() {
        true => Ok(for_musl),
        false if loader == Loader::Glibc => Ok(library),
        false => Err(Failure::Other(format!(
            "{} is linked with musl, and there is no {}, the library for such programs: install it (package \
             takt-preload; scripts/preload.sh builds it)",
            program.display(),
            for_musl.display()
        ))),
    }
}

fn absolute(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok().filter(|path| path.is_file())
}

/// The list of libraries to load, with ours before what the user has there already.
fn in_front(library: &Path) -> Result<OsString, Failure> {
    let text = library.as_os_str().to_string_lossy();
    if text.contains([' ', ':']) {
        return Err(Failure::Other(format!(
            "the loader cannot load {text} by {LOADER_VARIABLE}: its path must have neither spaces nor colons"
        )));
    }
    let mut list = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(LOADER_VARIABLE).filter(|others| !others.is_empty()) {
        list.push(OsStr::new(":"));
        list.push(others);
    }
    Ok(list)
}
