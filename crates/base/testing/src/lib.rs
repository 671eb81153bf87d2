//! What the tests of several packages need: waiting for something to be so, directories that go with their test,
//! programs and libraries of this workspace.
//!
//! It knows nothing of Takt. Hosts to test on are `takt-lab`'s.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Long enough that only what never happens runs into it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks follow each other for so long, and then after a pause: others need the core.
const EAGER: Duration = Duration::from_millis(1);
const PAUSE: Duration = Duration::from_micros(200);

/// Waits for something to be so, without guessing how long that takes.
///
/// # Panics
/// When it is not so in [`PATIENCE`].
pub fn until<T>(what: &str, condition: impl FnMut() -> Option<T>) -> T {
    until_within(PATIENCE, what, condition)
}

/// As [`until`], of what may rightly take longer.
///
/// # Panics
/// When it is not so within `patience`.
pub fn until_within<T>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = condition() {
            return found;
        }
        let waited = start.elapsed();
        assert!(waited < patience, "not in {patience:?}: {what}");
        if waited < EAGER {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Waits for something that is so or not.
///
/// # Panics
/// As [`until`].
pub fn until_true(what: &str, mut condition: impl FnMut() -> bool) {
    until(what, || condition().then_some(()));
}

/// Waits until each thread of a process that was sent a SIGSTOP stands still.
///
/// The call that sends it does not wait for that: the thread that takes the signal may be waiting for a core while
/// others go on.
///
/// # Panics
/// When the process has ended, and as [`until`].
pub fn until_stopped(pid: u32) {
    until_true("each thread is stopped", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("running");
        tasks.flatten().all(|task| {
            // One that has just ended does nothing any more.
            std::fs::read_to_string(task.path().join("stat")).map_or(true, |stat| {
                let state = stat.rsplit_once(") ").expect("a name in parentheses").1;
                state.starts_with('T')
            })
        })
    });
}

/// A call that waits, made again where it was interrupted: one with an end is, when the machine has stood still.
///
/// # Errors
/// The call's, other than that.
pub fn uninterrupted<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// A free peering port on loopback with room for the lanes behind it, below those that the kernel gives away by itself.
///
/// An abstract socket of that name keeps it for this process: tests run beside each other.
///
/// # Panics
/// When none is left.
pub fn free_port() -> u16 {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    static KEPT: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    for port in (12_000..32_000).step_by(16) {
        let name = format!("takt-test-port-{port}");
        if let Ok(name) = SocketAddr::from_abstract_name(name)
            && let Ok(listener) = UnixListener::bind_addr(&name)
        {
            kept.push(listener);
            return port;
        }
    }
    panic!("all ports are taken");
}

/// The key that all nodes of a test share.
pub const GROUP_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A directory of a test's own, removed with it. Its path is short enough for sockets.
#[derive(Debug)]
pub struct Directory(tempfile::TempDir);

impl Directory {
    /// One that everybody may enter.
    ///
    /// # Panics
    /// When it cannot be made.
    #[allow(clippy::new_without_default)] // it makes something
    pub fn new() -> Self {
        Self::with_mode(0o755)
    }

    /// One that its owner alone may enter.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn private() -> Self {
        Self::with_mode(0o700)
    }

    fn with_mode(mode: u32) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("takt-t-")
            .permissions(Permissions::from_mode(mode))
            .tempdir();
        Self(directory.expect("a directory"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path within.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A path within as text.
    pub fn text(&self, name: &str) -> String {
        self.join(name).display().to_string()
    }

    /// Writes a file, whose path it returns.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        std::fs::write(self.join(name), content).expect("write");
        self.text(name)
    }

    /// [`write`](Self::write) of what its owner alone may read.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write_secret(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.write(name, content);
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("its mode");
        path
    }

    /// The section of a node's configuration by which all nodes of a test know each other, with its files.
    ///
    /// # Panics
    /// When they cannot be written.
    pub fn security(&self) -> String {
        let group = self.write_secret("group.key", GROUP_KEY);
        let own = self.text("node.key");
        format!("[security]\ngroup_key_file = \"{group}\"\nkey_file = \"{own}\"\n")
    }
}

/// A page as a browser has it after some turns of its scripts.
///
/// # Panics
/// Without the browser.
pub fn browsed(address: &str) -> String {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"])
        // Containers have little of it.
        .arg("--disable-dev-shm-usage")
        // Of the page's own time, ms, which stands still while the page waits for an answer.
        .arg("--virtual-time-budget=2500")
        .arg(address)
        .stderr(Stdio::null())
        .output();
    let output = output.expect("chromium: scripts/setup.sh test installs it");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The directory of the programs and libraries of this workspace, built as the running test is: cargo builds
/// neither another package's programs for a test, nor a shared library of its own. All of them, for some alone would
/// have dependencies with other features, which are built anew.
///
/// # Panics
/// When they cannot be built.
pub fn built() -> PathBuf {
    let program = std::env::current_exe().expect("the test's own path");
    // target/debug/deps/programs-...
    let profile = program.ancestors().nth(2).expect("the profile's directory");
    let name = profile.file_name().expect("a name").to_string_lossy();
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    // What it tells this test of its own package: build scripts that read it would make all anew, here and at the next build.
    for (name, _) in std::env::vars_os() {
        let told = name.to_string_lossy();
        if told.starts_with("CARGO_PKG_")
            || told.starts_with("CARGO_MANIFEST_")
            || told == "OUT_DIR"
        {
            build.env_remove(&name);
        }
    }
    let output = build
        .args(["build", "--quiet", "--workspace"])
        .args(["--profile", if name == "debug" { "dev" } else { &name }])
        .arg("--target-dir")
        .arg(profile.parent().expect("the target directory"))
        .current_dir(repository())
        .output()
        .expect("cargo starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    profile.to_owned()
}
