//! `takt lab up --daemons`: a node on each host, its files below `/run/takt/lab/LAB/HOST`.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use takt_lab::{Host, Lab, OVERLAY_DEVICE, OVERLAY_ID, Overlay, RECORDS};
use takt_wire::ethernet::MacAddress;
use taktd::admin::client::connect;
use taktd::admin::proto::{ListPeersRequest, PeerState};
use taktd::security::{self, GroupKey};

use crate::admin::block_on;
use crate::failure::Failure;

/// How long nodes may take to start, and then to find each other.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait between two looks.
const PAUSE: Duration = Duration::from_millis(20);
/// How long a node may take to stop; a drain takes five seconds at most.
const FAREWELL: Timespec = Timespec {
    tv_sec: 10,
    tv_nsec: 0,
};

/// Starts a node on each host and waits until they have found each other.
pub fn start(lab: &Lab) -> Result<(), Failure> {
    let program = std::env::current_exe().map_err(Failure::io("find the path of this program"))?;
    let key = group_key(lab.name());
    security::write(&key, &GroupKey::generate().reveal())
        .map_err(|error| Failure::Other(error.to_string()))?;
    for host in lab.hosts() {
        start_on(host, lab, &program)?;
    }
    let others = lab.hosts().len() - 1;
    for host in lab.hosts() {
        let admin = host.directory().join("admin.sock");
        block_on(async {
            let mut client = connect(&admin).await?;
            let deadline = Instant::now() + PATIENCE;
            loop {
                let peers = client.list_peers(ListPeersRequest {}).await?;
                let peers = peers.into_inner().peers;
                let up = peers.iter().filter(|peer| peer.state() == PeerState::Up);
                let up = up.count();
                if up == others {
                    return Ok(());
                }
                if Instant::now() >= deadline {
                    return Err(Failure::Other(format!(
                        "the node of {} has found {up} of {others} others: see {}",
                        host.name(),
                        host.directory().join("log").display()
                    )));
                }
                tokio::time::sleep(PAUSE).await;
            }
        })?;
    }
    Ok(())
}

fn start_on(host: &Host, lab: &Lab, program: &Path) -> Result<(), Failure> {
    let directory = host.directory();
    let cannot = |what: &str, path: &Path| {
        let text = format!("cannot {what} {}", path.display());
        move |error: io::Error| Failure::Other(format!("{text}: {error}"))
    };
    fs::create_dir_all(&directory).map_err(cannot("make", &directory))?;
    let config = directory.join("takt.toml");
    fs::write(&config, configuration(host, lab)).map_err(cannot("write", &config))?;
    let log = directory.join("log");
    let lines = File::create(&log).map_err(cannot("write", &log))?;
    let notify = directory.join("notify.sock");
    let readiness = UnixDatagram::bind(&notify).map_err(cannot("make", &notify))?;
    readiness
        .set_read_timeout(Some(PAUSE))
        .map_err(cannot("watch", &notify))?;
    let mut command = host.login(program)?;
    let mut child = command
        .args(["run", "--config"])
        .arg(&config)
        .env("NOTIFY_SOCKET", &notify)
        .env_remove("WATCHDOG_USEC")
        .env_remove("JOURNAL_STREAM")
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(lines)
        .spawn()
        .map_err(cannot("run", program))?;
    let pid = directory.join("pid");
    fs::write(&pid, child.id().to_string()).map_err(cannot("write", &pid))?;
    let deadline = Instant::now() + PATIENCE;
    let mut told = [0; 512];
    loop {
        match readiness.recv(&mut told) {
            Ok(length) if told[..length].starts_with(b"READY=1") => break,
            _ => {}
        }
        let ended = child.try_wait().map_err(Failure::io("watch the node"))?;
        if ended.is_some() || Instant::now() >= deadline {
            let text = fs::read_to_string(&log).unwrap_or_default();
            return Err(Failure::Other(format!(
                "the node of {} does not start: {}",
                host.name(),
                text.lines().last().unwrap_or("it says nothing")
            )));
        }
    }
    // Gone already is as good.
    let _ = fs::remove_file(&notify);
    Ok(())
}

/// The key that the nodes of a lab share.
fn group_key(lab: &str) -> PathBuf {
    Path::new(RECORDS).join(lab).join("group.key")
}

fn configuration(host: &Host, lab: &Lab) -> String {
    let mut text = format!(
        "# Written by `takt lab up --daemons`. The sockets are named by the environment, as `takt lab exec` has it.\n\
         [node]\nname = \"{}\"\naddress = \"{}\"\n\n\
         [security]\nkey_file = \"{}\"\ngroup_key_file = \"{}\"\n",
        host.name(),
        host.address(),
        host.directory().join("node.key").display(),
        group_key(lab.name()).display()
    );
    for other in lab.hosts().iter().filter(|other| *other != host) {
        let address = other.address();
        text.push_str(&format!("\n[[peer]]\naddress = \"{address}:7400\"\n"));
    }
    let at = lab.hosts().iter().position(|other| other == host);
    if let Some(at) = at
        && lab.config().containers > 0
    {
        text.push_str(&containers(at, host, lab));
    }
    text
}

/// The network of the containers, and a socket for each of them as well as for the host.
fn containers(at: usize, host: &Host, lab: &Lab) -> String {
    let network = match lab.config().overlay {
        Overlay::HostGateway => "carrier = \"routed\"\nrouted = [\"10.88.0.0/16\"]".to_owned(),
        Overlay::Bridged | Overlay::Flannel => {
            format!("carrier = \"vxlan:{OVERLAY_ID}\"\nfollow = \"{OVERLAY_DEVICE}\"")
        }
    };
    let mut text = format!(
        "\n# What is late is dropped, as etf does: here only if it is later than a machine that does other things may be.\n\
         [departure]\ntolerance_us = 100000\n\n[[network]]\nname = \"containers\"\n{network}\n\n[[listener]]\npath = \"{}\"\n",
        host.socket().display()
    );
    for container in (0..lab.config().containers).map(|index| lab.container(at, index)) {
        text.push_str(&format!(
            "\n[[listener]]\npath = \"{}\"\nidentity = \"{}\"\n\n[listener.endpoint]\nnetwork = \"containers\"\n\
             mac = \"{}\"\naddresses = [\"{}/{}\"]\nmtu = {}\n",
            container.socket().display(),
            container.name(),
            MacAddress(container.mac()),
            container.address(),
            container.prefix_length(),
            container.mtu(),
        ));
    }
    text
}

/// Stops the nodes of the lab `name` that [`start`] has started, and removes their files.
pub fn stop(name: &str) -> Result<(), Failure> {
    // A lab's name has neither a slash nor a dot: `Lab::down` has it checked, and this comes before.
    if name.contains(['/', '.']) {
        return Ok(());
    }
    let directory = Path::new(RECORDS).join(name);
    let Ok(hosts) = fs::read_dir(&directory) else {
        return Ok(());
    };
    for host in hosts.flatten() {
        stop_one(&host.path())?;
    }
    fs::remove_dir_all(&directory)
        .map_err(|error| Failure::Other(format!("cannot remove {}: {error}", directory.display())))
}

fn stop_one(directory: &Path) -> Result<(), Failure> {
    let Ok(text) = fs::read_to_string(directory.join("pid")) else {
        return Ok(());
    };
    let Some(pid) = text.parse().ok().and_then(Pid::from_raw) else {
        return Ok(());
    };
    // From here on the number cannot become another process's.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return Ok(());
    };
    if !runs_with(pid, &directory.join("takt.toml")) {
        return Ok(());
    }
    for signal in [Signal::TERM, Signal::KILL] {
        // Gone already is as good.
        let _ = pidfd_send_signal(&process, signal);
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        match poll(&mut ended, Some(&FAREWELL)) {
            Ok(0) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(Failure::io("wait for a node to stop")(error.into())),
        }
    }
    Err(Failure::Other(format!(
        "process {} does not end: it is a node of this lab",
        pid.as_raw_nonzero()
    )))
}

/// Whether the process was started with that configuration.
fn runs_with(pid: Pid, config: &Path) -> bool {
    let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    let config = config.as_os_str().as_encoded_bytes();
    line.split(|byte| *byte == 0)
        .any(|argument| argument == config)
}
