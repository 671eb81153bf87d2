//! Compiles C and C++ programs against the header and the library, and runs them beside a real runtime.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::OnceLock;

use takt_embedded::{Embedded, Security, Settings};
use takt_runtime::config::ListenerConfig;
use takt_runtime::policy::{MappingPolicy, Policy};
use takt_testing::{Directory, built, repository};

/// A library of this workspace.
pub fn library(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(built).join(name)
}

/// A language to compile as.
#[derive(Clone, Copy, Debug)]
pub enum Language {
    C,
    Cpp,
}

pub const LANGUAGES: [Language; 2] = [Language::C, Language::Cpp];

/// A compiled program.
pub struct Program {
    scratch: Directory,
}

impl Program {
    /// Compiles `sources` with all warnings as errors.
    pub fn compile(language: Language, sources: &[PathBuf]) -> Self {
        Self::compile_with(language, sources, &[])
    }

    /// The same with macros.
    pub fn compile_with(language: Language, sources: &[PathBuf], macros: &[(&str, &str)]) -> Self {
        let scratch = Directory::new();
        let (compiler, options): (_, &[&str]) = match language {
            Language::C => ("gcc", &["-std=c11", "-Wstrict-prototypes"]),
            Language::Cpp => ("g++", &["-std=c++17", "-x", "c++"]),
        };
        // The loader looks for the name that the library gives itself.
        let takt = library("libtakt.so");
        for name in ["libtakt.so", "libtakt.so.0"] {
            std::os::unix::fs::symlink(&takt, scratch.join(name)).expect("a link to the library");
        }
        let embedded = library("libtakt_embedded.so");
        std::os::unix::fs::symlink(embedded, scratch.join("libtakt_embedded.so"))
            .expect("a link to the library");
        let output = Command::new(compiler)
            .args([
                "-Wall",
                "-Wextra",
                "-Werror",
                "-pedantic",
                "-g",
                "-O1",
                "-D_GNU_SOURCE",
            ])
            .args(options)
            .args(
                macros
                    .iter()
                    .map(|(name, value)| format!("-D{name}={value}")),
            )
            .arg("-I")
            .arg(repository().join("include"))
            .args(sources)
            .args(["-x", "none"])
            .arg("-o")
            .arg(scratch.join("program"))
            .arg("-L")
            .arg(scratch.path())
            .args(["-ltakt", "-lpthread", "-lm", "-Wl,-rpath,$ORIGIN"])
            .output()
            .unwrap_or_else(|error| panic!("{compiler}: {error}; install gcc and g++"));
        assert!(
            output.status.success(),
            "{compiler}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self { scratch }
    }

    /// The program, to be run. No variable of the caller's environment reaches it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.scratch.join("program"));
        command
            .env_clear()
            .env("TAKT_PORT", "0")
            .env("TAKT_GROUP_KEY", takt_testing::GROUP_KEY);
        command
    }

    /// Runs it at a runtime; it has to end well. Its output.
    pub fn run(&self, node: &Node) -> String {
        ended_well(self.command().env("TAKT_SOCKET", node.socket()).output())
    }
}

/// The output of a program that ended well.
pub fn ended_well(output: std::io::Result<Output>) -> String {
    let output = output.expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// A test's C program.
pub fn source(name: &str) -> PathBuf {
    repository()
        .join("crates/interface/capi/tests/interface/c")
        .join(name)
}

/// A runtime with a socket for applications.
pub struct Node {
    runtime: Embedded,
    scratch: Directory,
}

impl Node {
    pub fn start() -> Self {
        let scratch = Directory::new();
        let settings = Settings {
            security: Security::group(takt_testing::GROUP_KEY.parse().expect("a key")),
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            ..Settings::default()
        };
        let runtime = Embedded::start(settings).expect("a runtime");
        let handle = runtime.runtime();
        let listener = ListenerConfig {
            path: scratch.join("takt.sock"),
            mode: 0o600,
            policy: Policy::default(),
        };
        handle
            .set_listener(listener)
            .expect("the runtime runs")
            .expect("a socket");
        // Whoever of this host wants may be a peer.
        let accept = vec!["127.0.0.0/8".parse().expect("a network")];
        handle
            .reload(MappingPolicy::default(), accept)
            .expect("the runtime runs");
        Self { runtime, scratch }
    }

    /// Two that know each other.
    pub fn pair() -> [Self; 2] {
        let nodes = [Self::start(), Self::start()];
        let added = nodes[0]
            .runtime
            .runtime()
            .add_peer(nodes[1].address().into());
        added.expect("the runtime runs").expect("a key");
        nodes
    }

    pub fn socket(&self) -> PathBuf {
        self.scratch.join("takt.sock")
    }

    /// What its lanes count of a channel.
    pub fn counters(&self, channel: u64) -> takt_runtime::counters::ChannelReading {
        let channels = self.runtime.runtime().channels().expect("the runtime runs");
        let found = channels.into_iter().find(|found| found.channel == channel);
        found.expect("a channel in use").counters
    }

    /// Removes all its peers.
    pub fn forget_peers(&self) {
        let handle = self.runtime.runtime();
        for peer in handle.peers().expect("the runtime runs") {
            handle.remove_peer(peer.address).expect("the runtime runs");
        }
    }

    /// Where other runtimes find it.
    pub fn address(&self) -> SocketAddr {
        let status = self.runtime.runtime().status();
        status.expect("the runtime runs").control_address
    }
}
