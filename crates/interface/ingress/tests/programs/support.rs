//! Pods whose programs know nothing of Takt, a real daemon on their host, `takt veth` as an operator runs it, and who captures
//! at the far end of the cable.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::Duration;

use aya::programs::{SchedClassifier, TcAttachType};
use rustix::process::{Pid, Signal};
use takt_lab::{Capture, Host, Lab, LabConfig, OVERLAY_DEVICE, OVERLAY_ID, Overlay};
use takt_testing::{Directory, PATIENCE, repository, until};
use takt_wire::ethernet::MacAddress;
use taktd::admin::client::connect;
use taktd::admin::proto;

/// The port that the talkers send to.
pub const PORT: u16 = 5001;
/// The host's end of the pod's veth.
pub const DEVICE: &str = "c1";

/// Takes what leaves by the host's link.
pub const ATTACH: [&str; 5] = ["attach", "--device", "eth0", "--network", "line"];

/// The addresses of a virtual machine on the first host, which is on the pods' network.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(10, 88, 1, 200);
pub const GUEST_MAC: [u8; 6] = [2, 0, 10, 88, 1, 200];
/// The host's end of its cable.
pub const TAP: &str = "vm1";

/// A program of this workspace.
pub fn built(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(takt_testing::built).join(name)
}

fn sources() -> PathBuf {
    repository().join("crates/interface/ingress/tests/programs")
}

/// Compiles a talker, once. `None`: the compiler is not there.
fn compiled(name: &str, compile: impl FnOnce(&PathBuf) -> Command) -> Option<PathBuf> {
    static DIRECTORY: OnceLock<Directory> = OnceLock::new();
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let program = DIRECTORY.get_or_init(Directory::new).join(name);
    let _one_at_a_time = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !program.exists() {
        let output = match compile(&program).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            output => output.expect("the compiler starts"),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    }
    Some(program)
}

/// The talker in C, linked statically: nothing can stand in front of its calls.
pub fn static_talker() -> PathBuf {
    talker_in_c("talker-static", &["-static"])
}

/// The same, which can be preloaded.
pub fn dynamic_talker() -> PathBuf {
    talker_in_c("talker", &[])
}

fn talker_in_c(name: &str, options: &[&str]) -> PathBuf {
    let program = compiled(name, |program| {
        let mut command = Command::new("cc");
        command
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2"])
            .arg("-D_GNU_SOURCE")
            .args(options)
            .arg("-o")
            .args([program, &sources().join("c/talker.c")]);
        command
    });
    program.expect("the compiler: run scripts/setup.sh")
}

/// The talker in Go. `None`, with the reason: there is no Go here.
pub fn go_talker() -> Option<PathBuf> {
    let program = compiled("talker-go", |program| {
        let mut command = Command::new("go");
        command
            .args(["build", "-o"])
            .args([program, &sources().join("go/talker.go")])
            .env("GOTOOLCHAIN", "local")
            .env("GO111MODULE", "off");
        command
    });
    if program.is_none() {
        eprintln!("SKIPPED: the program in Go, for there is no `go` here: run scripts/setup.sh");
    }
    program
}

/// A schedule as `tc` has it, with a class for each priority.
pub fn taprio(entries: &str) -> String {
    format!(
        "taprio num_tc 8 map 0 1 2 3 4 5 6 7 0 0 0 0 0 0 0 0 queues 1@0 1@1 1@2 1@3 1@4 1@5 1@6 1@7 base-time 0 \
         {entries} clockid CLOCK_TAI"
    )
}

/// What a command printed, which must have ended well.
pub fn ended_well(output: std::io::Result<Output>) -> String {
    let output = output.expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What a command said when it refused.
pub fn refused(output: std::io::Result<Output>) -> String {
    let output = output.expect("the program starts");
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A program that runs beside the test, and not longer.
pub struct Running {
    child: Option<Child>,
    scratch: Directory,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let scratch = Directory::new();
        let file = |name| File::create(scratch.join(name)).expect("a file");
        let child = command
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("the program starts");
        Self {
            child: Some(child),
            scratch,
        }
    }

    pub fn output(&self) -> String {
        ["out", "err"]
            .map(|name| std::fs::read_to_string(self.scratch.join(name)).unwrap_or_default())
            .concat()
    }

    /// Its process.
    pub fn process(&self) -> Pid {
        Pid::from_child(self.child.as_ref().expect("it runs"))
    }

    /// How many descriptors it has open.
    pub fn descriptors(&self) -> usize {
        let process = self.child.as_ref().expect("it runs").id();
        let entries = std::fs::read_dir(format!("/proc/{process}/fd"));
        entries.expect("its descriptors").count()
    }

    /// Ends it with SIGKILL.
    pub fn kill(mut self) {
        let mut child = self.child.take().expect("once");
        child.kill().expect("it runs");
        child.wait().expect("its end");
    }

    /// Ends it as a service manager does; it must end well.
    pub fn terminate(mut self) {
        let mut child = self.child.take().expect("once");
        let process = Pid::from_child(&child);
        rustix::process::kill_process(process, Signal::TERM).expect("it runs");
        let status = child.wait().expect("its end");
        assert!(status.success(), "{status}: {}", self.output());
    }

    /// Waits until it has ended by itself, and how; what it said.
    pub fn end(mut self) -> (bool, String) {
        let status = self.child.take().expect("once").wait().expect("its end");
        (status.success(), self.output())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            eprintln!("the program said: {}", self.output());
        }
    }
}

/// A process that does nothing until this is dropped.
pub struct Stopped(Pid);

impl Stopped {
    pub fn new(process: Pid) -> Self {
        rustix::process::kill_process(process, Signal::STOP).expect("it runs");
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, Signal::CONT);
    }
}

/// A cgroup of a hierarchy of version 2, mounted for it alone: the host may have another one.
pub struct Cgroup {
    mount: Directory,
    name: String,
}

impl Cgroup {
    pub fn new() -> Self {
        let mount = Directory::new();
        let mounted = Command::new("mount")
            .args(["-t", "cgroup2", "none"])
            .arg(mount.join(""))
            .status();
        assert!(mounted.expect("mount").success());
        let name = format!("takt-test-{}", std::process::id());
        let cgroup = Self { mount, name };
        std::fs::create_dir(cgroup.path()).expect("a cgroup");
        cgroup
    }

    pub fn path(&self) -> PathBuf {
        self.mount.join(&self.name)
    }

    /// A command in it, without the capabilities that a usual pod has not.
    pub fn without_privilege(&self, host: &Host, command: &Command) -> Command {
        let mut shell = host.command("sh").expect("the lab is up");
        shell
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.path().join("cgroup.procs"))
            .args(["setpriv", "--bounding-set=-net_admin,-sys_admin"])
            .args(["--inh-caps=-net_admin,-sys_admin", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        shell
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(self.path());
        let unmounted = Command::new("umount").arg(self.mount.join("")).status();
        if !std::thread::panicking() {
            removed.expect("nobody is in it");
            assert!(unmounted.expect("umount").success());
        }
    }
}

/// Two hosts with a pod each, joined by a VXLAN of the kernel; a daemon on the first one, whose tenant is its pod.
pub struct Site {
    daemon: Option<Child>,
    scratch: Directory,
    pub lab: Lab,
    /// Of the link.
    datapath: &'static str,
}

impl Site {
    /// The pods are on one segment.
    pub fn bridged() -> Self {
        Self::new(Overlay::Bridged, "udp", 1)
    }

    /// The same, with two pods on each host.
    pub fn of_two_pods() -> Self {
        Self::new(Overlay::Bridged, "udp", 2)
    }

    /// One pod on each, and the daemon has the link by AF_XDP.
    pub fn by_xdp() -> Self {
        Self::new(Overlay::Bridged, "xdp", 1)
    }

    /// The hosts are routers for their pods, as Flannel has it.
    pub fn routed() -> Self {
        Self::new(Overlay::Flannel, "udp", 1)
    }

    fn new(overlay: Overlay, datapath: &'static str, containers: usize) -> Self {
        let config = LabConfig {
            hosts: 2,
            containers,
            overlay,
            ..LabConfig::default()
        };
        let lab = Lab::scratch(&config).expect("a lab: root and iproute2 are needed");
        for host in 0..2 {
            let address = six(host).to_string() + "/64";
            let status = Command::new("ip")
                .args(["-n", lab.container(host, 0).namespace()])
                .args(["address", "add", &address, "dev", "eth0", "nodad"])
                .status();
            assert!(status.expect("ip").success());
        }
        let mut site = Self {
            daemon: None,
            scratch: Directory::new(),
            lab,
            datapath,
        };
        site.start_daemon();
        site
    }

    /// The pod.
    pub fn pod(&self) -> &Host {
        self.lab.container(0, 0)
    }

    /// The pod that it sends to.
    pub fn there(&self) -> &Host {
        self.lab.container(1, 0)
    }

    /// Its addresses.
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.there().address().into(), six(1)]
    }

    /// The address of its gateway on a routed network: this host's.
    pub fn gateway(&self) -> Ipv4Addr {
        let [a, b, c, _] = self.pod().address().octets();
        Ipv4Addr::new(a, b, c, 1)
    }

    /// The other pod reads a stream to its end, and says what it was.
    pub fn reader(&self) -> JoinHandle<Vec<u8>> {
        reader(self.there())
    }

    /// The pod writes one, whole.
    pub fn write(&self, to: IpAddr, what: &[u8]) {
        write(self.pod(), to, what);
    }

    /// Where its programs would attach, were they preloaded.
    pub fn socket(&self) -> PathBuf {
        self.scratch.join("pod.sock")
    }

    pub fn start_daemon(&mut self) {
        let pod = self.pod();
        // As much tolerance as there is: a busy machine is not what is tested.
        let text = format!(
            "{}[node]\nname = \"h1\"\naddress = \"{}\"\n{}[departure]\ntolerance_us = 1000000\n\
             [admin]\nsocket = \"DIR/admin.sock\"\n\
             [[listener]]\npath = \"DIR/pod.sock\"\nidentity = \"pod\"\nclasses = [0, 3, 5]\n\
             [listener.endpoint]\nnetwork = \"pods\"\nmac = \"{}\"\naddresses = [\"{}/{}\", \"{}/64\"]\nvlans = [9]\n\
             [[listener]]\npath = \"DIR/guest.sock\"\nidentity = \"guest\"\nclasses = [0, 3, 5]\n\
             [listener.endpoint]\nnetwork = \"pods\"\nmac = \"{}\"\naddresses = [\"{GUEST}/{}\"]\nvlans = [7]\n\
             [[network]]\nname = \"pods\"\ncarrier = \"vxlan:{OVERLAY_ID}\"\nfollow = \"{OVERLAY_DEVICE}\"\n\
             [[network]]\nname = \"line\"\ncarrier = \"native\"\ninterface = \"eth0\"\n",
            match self.datapath {
                "xdp" => {
                    "[datapath.xdp]\ninterface = \"eth0\"\n"
                }
                _ => "",
            },
            self.lab.host(0).address(),
            self.scratch.security(),
            MacAddress(pod.mac()),
            pod.address(),
            pod.prefix_length(),
            six(0),
            MacAddress(GUEST_MAC),
            pod.prefix_length(),
        );
        let place = self.scratch.join("").display().to_string();
        std::fs::write(self.scratch.join("takt.toml"), text.replace("DIR/", &place))
            .expect("write");
        let notify = self.scratch.join("notify.sock");
        let _ = std::fs::remove_file(&notify);
        let notifications = UnixDatagram::bind(&notify).expect("bind");
        let patience = Some(Duration::from_millis(20));
        notifications.set_read_timeout(patience).expect("a timeout");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.scratch.join("log"));
        let mut daemon = self
            .lab
            .host(0)
            .command(built("taktd"))
            .expect("the lab is up")
            .arg("--config")
            .arg(self.scratch.join("takt.toml"))
            .env("NOTIFY_SOCKET", &notify)
            .env_remove("RUST_LOG")
            .env_remove("WATCHDOG_USEC")
            .stdin(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn()
            .expect("the daemon");
        let mut buffer = [0; 4096];
        until("the daemon is ready", || {
            let ready = notifications
                .recv(&mut buffer)
                .is_ok_and(|length| String::from_utf8_lossy(&buffer[..length]).contains("READY=1"));
            let ended = daemon.try_wait().expect("its state");
            assert!(ended.is_none(), "the daemon says: {}", self.log());
            ready.then_some(())
        });
        self.daemon = Some(daemon);
    }

    /// The daemon's process.
    pub fn daemon(&self) -> Pid {
        Pid::from_child(self.daemon.as_ref().expect("it runs"))
    }

    pub fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().expect("it runs");
            daemon.wait().expect("it ends");
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap_or_default()
    }

    /// A command of `takt` on the host.
    fn takt(&self, command: &str, arguments: &[&str]) -> Command {
        let host = self.lab.host(0);
        let mut takt = host.command(built("takt")).expect("the lab is up");
        takt.arg(command)
            .args(arguments)
            .env_remove("NOTIFY_SOCKET")
            .env("TAKT_ADMIN_SOCKET", self.scratch.join("admin.sock"));
        takt
    }

    /// The node is told whose the other pod's address is, as a cluster's controller tells it.
    pub fn enter_there(&self) {
        let there = self.there();
        let (mac, address) = (MacAddress(there.mac()).to_string(), there.address());
        let vtep = self.lab.host(1).address().to_string();
        let set = ["set", "pods", &mac, "--vtep", &vtep, "--address"];
        let mut command = self.takt("network", &set);
        ended_well(command.arg(address.to_string()).output());
    }

    /// `takt veth` on the host.
    pub fn veth(&self, arguments: &[&str]) -> Command {
        let mut command = self.takt("veth", arguments);
        command.env("TAKT_SOCKET", self.socket());
        command
    }

    /// `takt uplink` on the host.
    pub fn uplink(&self, arguments: &[&str]) -> Command {
        self.takt("uplink", arguments)
    }

    /// Takes what leaves by the host's link.
    pub fn attach_uplink(&self) -> Running {
        let running = Running::start(&mut self.uplink(&ATTACH));
        until("what leaves is taken", || {
            let output = running.output();
            assert!(!output.contains("takt: "), "{output}");
            output.contains("taking what leaves").then_some(())
        });
        running
    }

    /// What `takt uplink status` says: packets by what became of them; `None`: it is not attached.
    pub fn uplink_status(&self) -> Option<BTreeMap<String, u64>> {
        self.uplink_told().1
    }

    /// Whether it takes what leaves, and its counters while it is attached.
    pub fn uplink_told(&self) -> (bool, Option<BTreeMap<String, u64>>) {
        let status = self
            .uplink(&["status", "--device", "eth0", "--json"])
            .output()
            .expect("takt");
        let value: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
        let taking = value["taking"].as_bool().expect("whether");
        assert_eq!(status.status.code(), Some(if taking { 0 } else { 6 }));
        let attached = value["attached"].as_bool().expect("whether");
        (taking, attached.then(|| counters(&value)))
    }

    /// Waits until at least so many packets were counted of a kind at the link.
    pub fn until_uplink(&self, name: &str, count: u64) {
        until(&format!("{count} {name} at the link"), || {
            (self.uplink_status()?[name] >= count).then_some(())
        });
    }

    /// `takt guest` on the host.
    pub fn guest(&self, arguments: &[&str]) -> Command {
        let mut command = self.takt("guest", arguments);
        command.env("TAKT_SOCKET", self.scratch.join("guest.sock"));
        command
    }

    /// What `takt schedule status` says.
    pub fn schedule_status(&self) -> String {
        ended_well(self.takt("schedule", &["status"]).output())
    }

    /// Installs a schedule, as `tc` has it, on the host's link.
    pub fn schedule(&self, text: &str) {
        let file = self.scratch.join("schedule");
        std::fs::write(&file, text).expect("written");
        let arguments = ["install", "--from", "tc", "--datapath", self.datapath];
        ended_well(self.takt("schedule", &arguments).arg(file).output());
    }

    /// Installs one, and waits until it begins, of which class 0 has the end alone, so long after its beginning.
    pub fn schedule_best_effort_after(&self, seconds: usize) {
        let now = || takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos();
        // One that has begun already goes on with its next cycle.
        let begin = now() + 3_000_000_000;
        // An entry has room for four seconds.
        let closed = "sched-entry S fe 4000000000 ".repeat(seconds.div_ceil(4));
        let text = taprio(&format!("{closed}sched-entry S ff 1000000000"));
        self.schedule(&text.replace("base-time 0", &format!("base-time {begin}")));
        until("it begins", || (now() > begin).then_some(()));
    }

    /// Where a VMM finds the guest's device.
    pub fn vhost_user(&self) -> PathBuf {
        self.scratch.join("vhost-user.sock")
    }

    /// A tap device on the pods' bridge.
    pub fn add_tap(&self) {
        let namespace = self.lab.host(0).namespace();
        for command in [
            format!("-n {namespace} tuntap add dev {TAP} mode tap"),
            format!("-n {namespace} link set {TAP} mtu 1450 master cni0 up"),
        ] {
            let status = Command::new("ip").args(command.split(' ')).status();
            assert!(status.expect("ip").success());
        }
    }

    /// Has the host's kernel cut what it sends into frames before the wire: what it merged of one sender's arrives as it was sent.
    pub fn cut_before_the_wire(&self) {
        let mut ethtool = self.lab.host(0).command("ethtool").expect("the lab is up");
        ended_well(ethtool.args(["-K", "eth0", "gso", "off"]).output());
    }

    /// Waits until the bridge has noticed that the guest's cable is plugged in, which the kernel tells it later.
    pub fn until_plugged_in(&self) {
        until("the bridge forwards", || {
            let output = Command::new("bridge")
                .args([
                    "-n",
                    self.lab.host(0).namespace(),
                    "link",
                    "show",
                    "dev",
                    TAP,
                ])
                .output();
            let said = output.expect("bridge").stdout;
            String::from_utf8_lossy(&said)
                .contains("state forwarding")
                .then_some(())
        });
    }

    /// Serves the guest's device.
    pub fn attach_guest(&self, more: &[&str]) -> Running {
        let socket = self.vhost_user().display().to_string();
        let arguments = [&["attach", "--vhost-user", &socket, "--tap", TAP], more].concat();
        let running = Running::start(&mut self.guest(&arguments));
        until("the guest's device is served", || {
            let output = running.output();
            assert!(!output.contains("takt: "), "{output}");
            output.contains("serving a guest").then_some(())
        });
        running
    }

    /// What `takt guest status` says.
    pub fn guest_status(&self) -> takt_ingress::guest::Status {
        let socket = self.vhost_user().display().to_string();
        let text = ended_well(
            self.guest(&["status", "--vhost-user", &socket, "--json"])
                .output(),
        );
        serde_json::from_str(&text).expect("a status")
    }

    /// How many frames of a guest's queue were counted of a kind.
    pub fn guest_counted(&self, queue: usize, name: &str) -> u64 {
        let status = self.guest_status();
        let mut counters = status.queues[queue].counters.iter();
        let counter = counters.find(|counter| counter.name == name);
        counter.expect("a counter of that name").frames
    }

    /// Waits until so many frames of a guest's queue were counted of a kind.
    pub fn until_guest(&self, queue: usize, name: &str, count: u64) {
        until(&format!("{count} {name} of queue {queue}"), || {
            let now = self.guest_counted(queue, name);
            let status = || self.guest_status();
            assert!(
                now <= count,
                "{now} {name} instead of {count}: {:?}",
                status()
            );
            (now == count).then_some(())
        });
    }

    /// Takes launch times at the pod's veth.
    pub fn attach(&self, more: &[&str]) -> Running {
        let arguments = [&["attach", "--device", DEVICE], more].concat();
        let running = Running::start(&mut self.veth(&arguments));
        until("launch times are taken", || {
            let output = running.output();
            let mut lines = output.lines();
            let refused =
                lines.any(|l| l.starts_with("takt: ") && !l.starts_with("takt: warning: "));
            assert!(!refused, "{output}");
            output.contains("taking launch times").then_some(())
        });
        running
    }

    /// Takes the program at the pod's end away, as the pod's root can.
    pub fn detach_at_pod(&self) {
        /// `BPF_PROG_DETACH`, and `BPF_TCX_EGRESS`.
        const DETACH: libc::c_long = 9;
        const EGRESS: u32 = 47;
        let _inside = self.pod().enter().expect("the lab is up");
        // SAFETY: a string that ends, and outlives the call.
        let device = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
        let there = SchedClassifier::query_tcx("eth0", TcAttachType::Egress);
        let (_, programs) = there.expect("the programs");
        let program = programs[0].fd().expect("a descriptor");
        let number = program.as_fd().as_raw_fd() as u32;
        let attributes = [device, number, EGRESS, 0, 0, 0, 0, 0];
        // SAFETY: the words are what the command reads, and outlive the call.
        let done = unsafe {
            let size = size_of_val(&attributes);
            libc::syscall(libc::SYS_bpf, DETACH, attributes.as_ptr(), size)
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }

    /// What `takt veth status` says: whether somebody takes, whether it is required, and packets by what became of them.
    pub fn status(&self) -> (bool, bool, BTreeMap<String, u64>) {
        let text = ended_well(
            self.veth(&["status", "--device", DEVICE, "--json"])
                .output(),
        );
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let is = |name: &str| value[name].as_bool().expect("whether");
        (is("taking"), is("required"), counters(&value))
    }

    /// Waits until so many packets were counted of a kind.
    pub fn until_counted(&self, name: &str, count: u64) {
        until(&format!("{count} {name}"), || {
            let (_, _, counters) = self.status();
            let now = counters.get(name).copied().unwrap_or(0);
            assert!(
                now <= count,
                "{now} {name} instead of {count}: {counters:?}"
            );
            (now == count).then_some(())
        });
    }

    /// A talker in the pod that sends to an address of the other one, once a millisecond.
    pub fn talker(
        &self,
        program: &PathBuf,
        clock: &str,
        to: IpAddr,
        count: u32,
        lead: &str,
    ) -> Command {
        let mut command = self.pod().command(program).expect("the lab is up");
        command
            .arg(clock)
            .args([to.to_string(), PORT.to_string(), count.to_string()])
            .args(["1000", lead])
            .stdin(Stdio::null());
        command
    }

    /// What the daemon counts of the pod's frames with a launch time, by class.
    pub fn departures(&self) -> Vec<proto::ClassDepartures> {
        self.ask(async |client| {
            let links = client.list_schedules(proto::ListSchedulesRequest {}).await;
            links
                .expect("the schedules")
                .into_inner()
                .links
                .swap_remove(0)
                .classes
        })
    }

    /// What the pod's tenant is known to have sent past the runtime, by reason.
    pub fn unserved(&self) -> BTreeMap<String, u64> {
        self.ask(async |client| {
            let listeners = client.list_listeners(proto::ListListenersRequest {}).await;
            let listeners = listeners.expect("the listeners").into_inner().listeners;
            let all = listeners.into_iter().flat_map(|listener| listener.unserved);
            all.map(|one| (one.reason, one.count)).collect()
        })
    }

    /// The ports that the daemon's lanes send from by the kernel.
    pub fn lane_ports(&self) -> Vec<u16> {
        self.ask(async |client| {
            let status = client.get_status(proto::GetStatusRequest {}).await;
            let node = status.expect("the status").into_inner().node;
            let lanes = node.expect("the node").lanes.into_iter();
            let ports = lanes.flat_map(|lane| lane.ports);
            let ports = ports.filter(|port| port.datapath == "udp");
            let addresses = ports.map(|port| port.local.parse::<SocketAddr>());
            addresses
                .map(|address| address.expect("an address").port())
                .collect()
        })
    }

    /// The identities of the daemon's listeners.
    pub fn listeners(&self) -> Vec<String> {
        self.ask(async |client| {
            let listeners = client.list_listeners(proto::ListListenersRequest {}).await;
            let listeners = listeners.expect("the listeners").into_inner().listeners;
            let all = listeners.into_iter().filter_map(|status| status.listener);
            all.map(|listener| listener.identity).collect()
        })
    }

    fn ask<T>(&self, question: impl AsyncFnOnce(&mut taktd::admin::client::Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let socket = self.scratch.join("admin.sock");
            question(&mut connect(&socket).await.expect("the admin API")).await
        })
    }

    /// An ordinary socket in the other pod.
    pub fn listener(&self) -> UdpSocket {
        let _inside = self.there().enter().expect("the lab is up");
        let socket = UdpSocket::bind(("0.0.0.0", PORT)).expect("bind");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // Tests read when the talker has ended: until then it holds all that one sends.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 4 << 20).expect("memory");
        socket
    }

    /// Makes a VXLAN of the pods' own between them, which their hosts know nothing of; the addresses of its ends.
    pub fn tunnel(&self) -> [Ipv4Addr; 2] {
        let ends = [self.pod(), self.there()];
        let inner = [Ipv4Addr::new(10, 99, 0, 1), Ipv4Addr::new(10, 99, 0, 2)];
        for (at, host) in ends.into_iter().enumerate() {
            let (own, other) = (host.address(), ends[1 - at].address());
            let add = format!(
                "link add own0 type vxlan id 9 local {own} remote {other} dstport 4789 dev eth0"
            );
            let address = format!("address add {}/24 dev own0", inner[at]);
            for command in [&add, &address, "link set own0 up"] {
                let mut ip = host.command("ip").expect("the lab is up");
                ended_well(ip.args(command.split(' ')).output());
            }
        }
        inner
    }

    /// Captures what arrives at the other host.
    pub fn capture(&self) -> Wire {
        Wire(Capture::open(self.lab.host(1)).expect("a capture"))
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill_daemon();
        if std::thread::panicking() {
            eprintln!("the daemon said:\n{}", self.log());
        }
    }
}

/// Somebody reads a stream to its end, and says what it was.
pub fn reader(host: &Host) -> JoinHandle<Vec<u8>> {
    let listener = {
        let _inside = host.enter().expect("the lab is up");
        TcpListener::bind("[::]:5002").expect("bind")
    };
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut all = Vec::new();
        stream.read_to_end(&mut all).expect("received");
        all
    })
}

/// Somebody writes one, whole.
pub fn write(host: &Host, to: IpAddr, what: &[u8]) {
    let _inside = host.enter().expect("the lab is up");
    let mut stream = TcpStream::connect((to, 5002)).expect("connected");
    stream.write_all(what).expect("sent");
}

/// Sends a number, which is the next that is received.
pub fn exchange(socket: &UdpSocket, (listener, to): (&UdpSocket, Ipv4Addr), number: u32) {
    let sent = socket.send_to(&number.to_ne_bytes(), (to, PORT));
    sent.expect("sent");
    let mut datagram = [0; 8];
    assert_eq!(listener.recv(&mut datagram).expect("a datagram"), 4);
    assert_eq!(datagram[..4], number.to_ne_bytes());
}

/// Sends a number; whether it is received before there is nothing for 0.2 s. Those before it may have waited.
pub fn arrives(socket: &UdpSocket, (listener, to): (&UdpSocket, Ipv4Addr), number: u32) -> bool {
    let patience = Some(Duration::from_millis(200));
    listener.set_read_timeout(patience).expect("a timeout");
    let sent = socket.send_to(&number.to_ne_bytes(), (to, PORT));
    sent.expect("sent");
    let mut datagram = [0; 8];
    while listener.recv(&mut datagram).is_ok() {
        if datagram[..4] == number.to_ne_bytes() {
            return true;
        }
    }
    false
}

/// What a command counts, as it says in JSON.
fn counters(value: &serde_json::Value) -> BTreeMap<String, u64> {
    let counters = value["counters"].as_array().expect("a list").iter();
    let counters = counters.map(|counter| {
        let name = counter["name"].as_str().expect("a name").to_owned();
        (name, counter["packets"].as_u64().expect("a number"))
    });
    counters.collect()
}

/// The IPv6 address of a pod.
fn six(host: usize) -> IpAddr {
    format!("fd88::{}", host + 1).parse().expect("an address")
}

/// What arrives at the other host's end of the cable.
pub struct Wire(Capture);

/// A datagram of a talker's on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Its number.
    pub number: u32,
    /// How long after its launch time it was at the far end, nanoseconds.
    pub after: i64,
    /// When that was, nanoseconds of TAI.
    pub at: i64,
    /// Its class, as the tunnel's outer header is marked with it.
    pub class: u8,
}

impl Wire {
    /// The next datagram of a talker's; `None`: none is there.
    fn take(&self) -> Option<Arrival> {
        // Outer Ethernet, IPv4, UDP and VXLAN.
        const TUNNEL: usize = 14 + 20 + 8 + 8;
        loop {
            let captured = self.0.take().expect("the capture")?;
            let Some(inner) = captured.frame.get(TUNNEL..) else {
                continue;
            };
            let inner = match inner.get(12..14) {
                Some([0x81, 0]) => &inner[4..],
                _ => inner,
            };
            let (protocol, header) = match inner.get(12..14) {
                Some([8, 0]) => (14 + 9, 14 + 20),
                Some([0x86, 0xdd]) => (14 + 6, 14 + 40),
                _ => continue,
            };
            if inner.get(protocol) != Some(&17) {
                continue;
            }
            let Some(datagram) = inner.get(header..) else {
                continue;
            };
            if datagram.get(2..4) != Some(&PORT.to_be_bytes()) || datagram.len() < 20 {
                continue;
            }
            let launch = i64::from_ne_bytes(datagram[8..16].try_into().expect("eight"));
            let at = captured.realtime_ns + leap_seconds();
            return Some(Arrival {
                at,
                number: u32::from_ne_bytes(datagram[16..20].try_into().expect("four")),
                after: at - launch,
                class: captured.frame[15] >> 5,
            });
        }
    }

    /// Everything of the talkers' that has arrived.
    pub fn all(&self) -> Vec<Arrival> {
        let all = std::iter::from_fn(|| self.take()).collect();
        assert_eq!(self.0.lost().expect("the capture"), 0);
        all
    }

    /// Waits for so many.
    pub fn wait(&self, count: usize) -> Vec<Arrival> {
        let mut all = Vec::new();
        until(&format!("{count} datagrams arrive"), || {
            all.extend(std::iter::from_fn(|| self.take()));
            (all.len() >= count).then_some(())
        });
        assert_eq!(self.0.lost().expect("the capture"), 0);
        all
    }
}

/// TAI less UTC as the kernel knows it, nanoseconds.
fn leap_seconds() -> i64 {
    const SECOND: i64 = 1_000_000_000;
    let tai = takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos();
    let utc = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("after the epoch")
        .as_nanos() as i64;
    (tai - utc + SECOND / 2).div_euclid(SECOND) * SECOND
}
