//! Compiles C and C++ programs against the header and the library, and runs them beside a real runtime.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use takt_embedded::{Embedded, Settings};
use takt_runtime::config::ListenerConfig;
use takt_runtime::policy::Policy;

/// The repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A library of this workspace. Cargo builds no shared library for a test, so the test has it built.
pub fn library(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let directory = BUILT.get_or_init(|| {
        let program = std::env::current_exe().expect("the test's own path");
        // target/debug/deps/interface-...
        let profile = program.ancestors().nth(2).expect("the profile's directory");
        let name = profile.file_name().expect("a name").to_string_lossy();
        let output = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
            .args([
                "build",
                "--quiet",
                "--lib",
                "-p",
                "takt-capi",
                "-p",
                "takt-embedded",
            ])
            .args(["--profile", if name == "debug" { "dev" } else { &name }])
            .arg("--target-dir")
            .arg(profile.parent().expect("the target directory"))
            .current_dir(root())
            .output()
            .expect("cargo starts");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        profile.to_owned()
    });
    directory.join(name)
}

/// A directory of this test's own, removed with it.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("takt-capi-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
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
    scratch: Scratch,
}

impl Program {
    /// Compiles `sources` with all warnings as errors.
    pub fn compile(language: Language, sources: &[PathBuf]) -> Self {
        let scratch = Scratch::new();
        let (compiler, options): (_, &[&str]) = match language {
            Language::C => ("gcc", &["-std=c11", "-Wstrict-prototypes"]),
            Language::Cpp => ("g++", &["-std=c++17", "-x", "c++"]),
        };
        // The loader looks for the name that the library gives itself.
        let takt = library("libtakt.so");
        for name in ["libtakt.so", "libtakt.so.0"] {
            std::os::unix::fs::symlink(&takt, scratch.path(name)).expect("a link to the library");
        }
        let embedded = library("libtakt_embedded.so");
        std::os::unix::fs::symlink(embedded, scratch.path("libtakt_embedded.so"))
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
            .arg("-I")
            .arg(root().join("include"))
            .args(sources)
            .args(["-x", "none"])
            .arg("-o")
            .arg(scratch.path("program"))
            .arg("-L")
            .arg(&scratch.0)
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
        let mut command = Command::new(self.scratch.path("program"));
        command.env_clear().env("TAKT_PORT", "0");
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
    root().join("crates/capi/tests/interface/c").join(name)
}

/// A runtime with a socket for applications.
pub struct Node {
    _runtime: Embedded,
    scratch: Scratch,
}

impl Node {
    pub fn start() -> Self {
        let scratch = Scratch::new();
        let settings = Settings {
            port: 0,
            ..Settings::default()
        };
        let runtime = Embedded::start(settings).expect("a runtime");
        let listener = ListenerConfig {
            path: scratch.path("takt.sock"),
            mode: 0o600,
            policy: Policy::default(),
        };
        runtime
            .runtime()
            .set_listener(listener)
            .expect("the runtime runs")
            .expect("a socket");
        Self {
            _runtime: runtime,
            scratch,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.scratch.path("takt.sock")
    }
}
