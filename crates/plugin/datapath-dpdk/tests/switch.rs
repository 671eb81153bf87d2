//! KuberneTSN's deployment: a runtime's virtio device, Open vSwitch with its datapath over DPDK, a link, and a
//! kernel at the far end.

mod support;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{Directory, INTERFACE, config, fresh};
use takt_datapath::overhead::median;
use takt_datapath::{Datapath, Port, PortRequest, ReserveError};
use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath, Subnet};
use takt_lab::{Host, Lab, LabConfig};
use takt_time::TrafficClass;

const PATIENCE: Duration = Duration::from_secs(60);
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";

fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A process that ends with this.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Open vSwitch on a host, with a directory of its own.
struct Switch<'a> {
    host: &'a Host,
    directory: &'a Path,
    processes: Vec<Process>,
}

impl Drop for Switch<'_> {
    fn drop(&mut self) {
        self.processes.clear();
        let _ = std::fs::remove_dir_all(Path::new("/var/run/dpdk").join(prefix()));
    }
}

/// DPDK's name for the switch: another one of this machine is not in its way.
fn prefix() -> String {
    format!("takt-switch-{}", std::process::id())
}

impl<'a> Switch<'a> {
    fn command(host: &Host, directory: &Path, program: &str) -> Command {
        let mut command = host.command(program).expect("enter the host");
        for variable in ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR"] {
            command.env(variable, directory);
        }
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn start(host: &'a Host, directory: &'a Path) -> Self {
        let database = directory.join("conf.db");
        let made = Self::command(host, directory, "ovsdb-tool")
            .arg("create")
            .arg(&database)
            .arg("/usr/share/openvswitch/vswitch.ovsschema")
            .status()
            .expect("ovsdb-tool");
        assert!(made.success(), "ovsdb-tool");
        let mut server = Self::command(host, directory, "ovsdb-server");
        server.arg(&database);
        server.arg(format!("--remote=punix:{}/db.sock", directory.display()));
        server.arg(format!("--unixctl={}/db.ctl", directory.display()));
        let mut switch = Self {
            host,
            directory,
            processes: vec![Process(server.spawn().expect("ovsdb-server"))],
        };
        wait_until("the database's socket", || {
            directory.join("db.sock").exists()
        });
        switch.configure("--no-wait init");
        switch.configure("--no-wait set Open_vSwitch . other_config:dpdk-init=true");
        let options = format!(
            "--no-huge --legacy-mem -m 512 --no-pci --file-prefix={}",
            prefix()
        );
        switch.set("--no-wait", &format!("other_config:dpdk-extra={options}"));
        switch.configure("--no-wait set Open_vSwitch . other_config:pmd-cpu-mask=0x1");
        switch.run();
        switch
    }

    fn set(&self, how: &str, value: &str) {
        let set = Self::command(self.host, self.directory, "ovs-vsctl")
            .arg(format!("--db=unix:{}/db.sock", self.directory.display()))
            .args([how, "set", "Open_vSwitch", ".", value])
            .status();
        assert!(set.expect("ovs-vsctl").success(), "{value}");
    }

    /// Starts the switch itself, anew where it runs.
    fn run(&mut self) {
        self.processes.truncate(1);
        let mut daemon = Self::command(self.host, self.directory, SWITCH);
        daemon.arg(format!("unix:{}/db.sock", self.directory.display()));
        daemon.arg(format!("--unixctl={}/switch.ctl", self.directory.display()));
        daemon.arg(format!(
            "--log-file={}/switch.log",
            self.directory.display()
        ));
        self.processes
            .push(Process(daemon.spawn().expect("ovs-vswitchd")));
    }

    fn configure(&self, arguments: &str) {
        let done = Self::command(self.host, self.directory, "ovs-vsctl")
            .arg(format!("--db=unix:{}/db.sock", self.directory.display()))
            .arg("--timeout=30")
            .args(arguments.split_whitespace())
            .status();
        let log = || std::fs::read_to_string(self.directory.join("switch.log")).unwrap_or_default();
        assert!(done.expect("ovs-vsctl").success(), "{arguments}: {}", log());
    }
}

/// There and back, by the kernel's echo of each datagram.
fn round_trip(port: &mut dyn Port, kernel: &UdpSocket, number: u32) {
    let remote = kernel.local_addr().expect("bound");
    let peer = port.connect(remote).expect("a peer");
    let mut buffer = [0; 64];
    wait_until("the kernel gets a datagram", || {
        match port.reserve(peer) {
            Ok(frame) => {
                port.payload(&frame)[..4].copy_from_slice(&number.to_be_bytes());
                port.commit(frame, 4, TrafficClass::BEST_EFFORT, None);
            }
            Err(ReserveError::Unresolved | ReserveError::WouldBlock) => {}
            Err(error) => panic!("{error}"),
        }
        port.flush();
        port.receive(64, &mut |_| {});
        match kernel.recv_from(&mut buffer) {
            Ok((length, source)) => {
                assert_eq!(source, port.local(), "from whom the datagram is");
                buffer[..length] == number.to_be_bytes()
            }
            Err(_) => false,
        }
    });
    kernel.send_to(b"back", port.local()).expect("an answer");
    wait_until("the answer", || {
        let mut seen = false;
        port.receive(64, &mut |datagram| {
            assert_eq!(datagram.source, remote);
            seen |= datagram.payload == b"back";
        });
        seen
    });
}

/// Two hosts; `None`, and a note, where there can be no switch.
fn hosts() -> Option<Lab> {
    if !support::privileged() {
        return None;
    }
    if !Path::new(SWITCH).exists() {
        println!("skipped: there is no {SWITCH} (openvswitch-switch-dpdk)");
        return None;
    }
    Some(Lab::scratch(&LabConfig::default()).expect("make two hosts"))
}

/// The address of the device behind the switch.
fn behind(lab: &Lab) -> IpAddr {
    let [a, b, c, _] = lab.host(1).address().octets();
    [a, b, c, 77].into()
}

/// The first host's switch on its cable, and a device behind it.
fn deploy<'a>(lab: &'a Lab, directory: &'a Directory) -> (Switch<'a>, DpdkDatapath) {
    let socket = directory.0.join("vhost.sock");
    let switch = Switch::start(lab.host(0), &directory.0);
    switch.configure("add-br br0 -- set bridge br0 datapath_type=netdev");
    switch.configure(&format!("add-port br0 {INTERFACE}"));
    switch.configure(&format!(
        "add-port br0 vhost0 -- set Interface vhost0 type=dpdkvhostuserclient options:vhost-server-path={}",
        socket.display()
    ));
    let device = format!(
        "net_virtio_user{},path={},server=1,mac=02:00:00:00:00:77",
        fresh(),
        socket.display()
    );
    // The driver waits until the switch has connected.
    let datapath = DpdkDatapath::probe(&DpdkConfig {
        addresses: vec![Subnet {
            address: behind(lab),
            prefix: 24,
        }],
        ..config(&device)
    });
    (switch, datapath.expect("a device"))
}

fn open(datapath: &DpdkDatapath, address: impl Into<IpAddr>) -> Box<dyn Port> {
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: SocketAddr::new(address.into(), 7401),
    };
    datapath.open(&request).expect("a port")
}

/// A socket of the far host's kernel.
fn kernel(lab: &Lab) -> UdpSocket {
    let far = lab.host(1);
    let _inside = far.enter().expect("enter the host");
    UdpSocket::bind((far.address(), 7401)).expect("a socket")
}

#[test]
fn datagrams_pass_open_vswitch_to_a_kernel_and_back_also_after_it_has_restarted() {
    let Some(lab) = hosts() else {
        return;
    };
    let directory = Directory::new();
    let (mut switch, datapath) = deploy(&lab, &directory);
    let mut port = open(&datapath, behind(&lab));
    let kernel = kernel(&lab);
    kernel
        .set_nonblocking(true)
        .expect("a socket that does not wait");
    for number in 0..100 {
        round_trip(&mut *port, &kernel, number);
    }
    switch.run();
    for number in 100..200 {
        round_trip(&mut *port, &kernel, number);
    }
}

/// The median round trip to the far kernel's echo, in microseconds.
fn median_round_trip(port: &mut dyn Port, lab: &Lab) -> f64 {
    const COUNT: usize = 20_000;
    let kernel = kernel(lab);
    let remote = kernel.local_addr().expect("bound");
    let end = std::sync::atomic::AtomicBool::new(false);
    let patience = Some(Duration::from_millis(100));
    kernel.set_read_timeout(patience).expect("a timeout");
    let mut times: Vec<f64> = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 64];
            while !end.load(std::sync::atomic::Ordering::Relaxed) {
                if let Ok((length, from)) = kernel.recv_from(&mut buffer) {
                    kernel.send_to(&buffer[..length], from).expect("an answer");
                }
            }
        });
        let peer = port.connect(remote).expect("a peer");
        let times = (0..COUNT).map(|_| {
            let start = Instant::now();
            let mut sent = None;
            loop {
                // Sent again where it was lost, which counts as it took.
                if sent.is_none_or(|at: Instant| at.elapsed() > Duration::from_secs(1)) {
                    if let Ok(frame) = port.reserve(peer) {
                        port.payload(&frame)[..64].fill(7);
                        port.commit(frame, 64, TrafficClass::BEST_EFFORT, None);
                        sent = Some(Instant::now());
                    }
                    port.flush();
                }
                if port.receive(64, &mut |_| {}) > 0 {
                    break start.elapsed().as_secs_f64() * 1e6;
                }
            }
        });
        let times = times.collect();
        end.store(true, std::sync::atomic::Ordering::Relaxed);
        times
    });
    median(&mut times)
}

#[test]
#[ignore = "measures and asserts nothing about time: cargo test --release --test switch -- --ignored --nocapture"]
fn the_share_of_the_switch_in_the_latency() {
    let mut all = [const { Vec::new() }; 2];
    for _ in 0..5 {
        let Some(lab) = hosts() else {
            return;
        };
        let directory = Directory::new();
        let (switch, datapath) = deploy(&lab, &directory);
        let mut port = open(&datapath, behind(&lab));
        all[0].push(median_round_trip(&mut *port, &lab));
        drop(port);
        drop((datapath, switch));
        // The same kernel at the far end, the same cable, and no switch: the device is on the cable itself.
        let lab = Lab::scratch(&LabConfig::default()).expect("make two hosts");
        let near = lab.host(0);
        let mut port = {
            let _inside = near.enter().expect("enter the host");
            let device = format!("net_af_packet{},iface={INTERFACE}", fresh());
            let datapath = DpdkDatapath::probe(&config(&device)).expect("a device");
            open(&datapath, near.address())
        };
        all[1].push(median_round_trip(&mut *port, &lab));
    }
    let [behind, without] = all.each_mut().map(|times| median(times));
    println!(
        "round trip of 64 bytes, medians of five: {behind:.1} us behind the switch, {without:.1} us without; the switch's share: {:.0} %",
        (behind - without) / behind * 100.0
    );
}
