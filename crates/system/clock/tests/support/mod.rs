//! Daemons that keep clocks, in lab hosts and without the right to set any. Used by the tests of several crates.

#![allow(dead_code)] // each test program uses its part

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use takt_lab::{Host, Lab, LabConfig};
use takt_testing::Directory;

/// Where `scripts/setup.sh` unpacks what is not installed.
const TOOLS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../target/tools/usr/sbin"
);

fn program(name: &str) -> Option<PathBuf> {
    ["/usr/sbin", "/usr/bin", "/usr/local/sbin", TOOLS]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists())
}

/// A lab, and the paths of these programs; `None`, and the reason, where that cannot be.
pub fn lab<const N: usize>(programs: [&str; N]) -> Option<(Lab, [PathBuf; N])> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return None;
    }
    if let Some(missing) = programs.iter().find(|name| program(name).is_none()) {
        eprintln!("skipped: there is no {missing}: run scripts/setup.sh");
        return None;
    }
    let lab = Lab::scratch(&LabConfig::default()).expect("a lab");
    Some((lab, programs.map(|name| program(name).expect("found"))))
}

/// A daemon that goes with its owner.
pub struct Daemon(Child);

impl Daemon {
    /// Runs `program` in a host, without the right to set any clock.
    pub fn start(host: &Host, program: &Path, arguments: &[&str]) -> Self {
        let mut command = host.command("setpriv").expect("a host");
        command
            .args(["--bounding-set=-sys_time", "--inh-caps=-sys_time"])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Self(command.spawn().expect("setpriv"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A chronyd of this host; what it answers to is `name` in the directory, and 127.0.0.1:323 there.
pub fn chronyd(
    program: &Path,
    host: &Host,
    directory: &Directory,
    name: &str,
    more: &str,
) -> Daemon {
    let text = format!(
        "{more}\nbindcmdaddress {}\nbindcmdaddress 127.0.0.1\npidfile {}\n",
        directory.join(name).display(),
        directory.join(&format!("{name}.pid")).display(),
    );
    let file = directory.write(&format!("{name}.conf"), &text);
    Daemon::start(host, program, &["-x", "-d", "-u", "root", "-f", &file])
}
