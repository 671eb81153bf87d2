//! Programs under the preload in containers of a lab, a real daemon on their host, and who listens to them.

use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use takt_lab::{Host, Lab, LabConfig, OVERLAY_DEVICE, OVERLAY_ID, Overlay};
use takt_testing::{Directory, PATIENCE, repository, until};
use takt_wire::ethernet::MacAddress;
use taktd::admin::client::{Client, connect};
use taktd::admin::proto;

/// The port of whoever listens.
pub const PORT: u16 = 5001;
/// Bytes that a listener may have before it, so that nothing is lost however seldom it can run: a short datagram
/// takes about 1 KiB.
static RECEIVE_BUFFER: libc::c_int = 64 << 20;
/// The prefix of the containers' IPv6 addresses, which the lab does not give them.
const SIX: &str = "fd88::";

/// A program or library of this workspace.
pub fn built(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(takt_testing::built).join(name)
}

/// A program that may be in the way where it is installed, or where `scripts/setup.sh` has unpacked it.
pub fn tool(name: &str) -> PathBuf {
    let unpacked = repository().join("target/tools/usr/sbin").join(name);
    if unpacked.exists() {
        unpacked
    } else {
        PathBuf::from("/usr/sbin").join(name)
    }
}

/// A C program of the tests, compiled once with all warnings as errors, and with the checks of buffers that
/// distributions switch on.
pub fn program(name: &str) -> PathBuf {
    compiled("cc", name, name, &["-D_FORTIFY_SOURCE=2"])
}

/// The same for musl, and without such checks, which musl does not have.
pub fn musl_program(name: &str) -> PathBuf {
    // The kernel's headers are where glibc's are.
    let multiarch = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let headers = ["-idirafter", "/usr/include", "-idirafter", &multiarch];
    compiled("musl-gcc", name, &format!("{name}-musl"), &headers)
}

/// The same, statically linked.
pub fn static_program_of_musl(name: &str) -> PathBuf {
    let multiarch = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let headers = [
        "-static",
        "-idirafter",
        "/usr/include",
        "-idirafter",
        &multiarch,
    ];
    compiled("musl-gcc", name, &format!("{name}-musl-static"), &headers)
}

/// The same for glibc, statically linked and with `STATIC` defined.
pub fn static_program(name: &str) -> PathBuf {
    let options = ["-D_FORTIFY_SOURCE=2", "-static", "-DSTATIC"];
    compiled("cc", name, &format!("{name}-static"), &options)
}

fn compiled(compiler: &str, name: &str, program: &str, options: &[&str]) -> PathBuf {
    static DIRECTORY: OnceLock<Directory> = OnceLock::new();
    static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let program = DIRECTORY.get_or_init(Directory::new).join(program);
    let _one_at_a_time = LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !program.exists() {
        let directory = repository().join("crates/interface/preload/tests/programs/c");
        let output = Command::new(compiler)
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-O2"])
            .args(["-D_GNU_SOURCE", "-pthread"])
            .args(options)
            .arg(directory.join(format!("{name}.c")))
            .arg("-o")
            .arg(&program)
            .output()
            .expect("the compiler: run scripts/setup.sh");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    program
}

/// A script of the tests.
pub fn script(name: &str) -> PathBuf {
    repository()
        .join("crates/interface/preload/tests/programs/python")
        .join(name)
}

/// A command in a host under the preload, without the environment's wishes.
pub fn preloaded(host: &Host, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = host.command(program).expect("the lab is up");
    command
        .env("LD_PRELOAD", built("libtakt_preload.so"))
        .env_remove("TAKT_PRELOAD")
        .env("TAKT_SOCKET", "/nonexistent/takt.sock")
        .stdin(Stdio::null());
    command
}

/// What a program printed, which must have ended well.
pub fn ended_well(output: io::Result<Output>) -> (String, String) {
    let output = output.expect("the program starts; if it is not there, run scripts/setup.sh");
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    (out, err)
}

/// A program that runs beside the test, and not longer.
pub struct Running {
    child: Option<Child>,
    /// Its output: files, so that it never waits for us to read.
    scratch: Directory,
}

impl Running {
    pub fn start(command: &mut Command) -> Self {
        let scratch = Directory::new();
        let file = |name| File::create(scratch.join(name)).expect("a file");
        let child = command
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .expect("the program starts; if it is not there, run scripts/setup.sh");
        Self {
            child: Some(child),
            scratch,
        }
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: libc::c_int) {
        let child = self.child.as_ref().expect("once");
        // SAFETY: plain system call, for a child that was not waited for.
        let sent = unsafe { libc::kill(child.id().cast_signed(), signal) };
        assert_eq!(sent, 0, "{}", io::Error::last_os_error());
    }

    /// Ends it with SIGKILL.
    pub fn kill(&mut self) {
        let child = self.child.as_mut().expect("once");
        child.kill().expect("it runs");
        child.wait().expect("its end");
    }

    /// What it has printed: what strace says of itself, where it runs under that, is not the program's.
    pub fn output(&self) -> (String, String) {
        let read = |name| std::fs::read_to_string(self.scratch.join(name)).unwrap_or_default();
        let err = read("err");
        let own = err.split_inclusive('\n');
        let own = own.filter(|line| !line.starts_with("strace: "));
        (read("out"), own.collect())
    }

    /// Waits until it has ended, which must be well; what it printed.
    pub fn end(mut self) -> (String, String) {
        let status = self.child.take().expect("once").wait().expect("its end");
        let (out, err) = self.output();
        assert!(status.success(), "{status}: {out}{err}");
        (out, err)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
            eprintln!("the program said: {:?}", self.output());
        }
    }
}

/// Traffic classes that tenants may use.
const CLASSES: &str = "[0, 1, 2, 3, 4, 5, 6]";

/// Two hosts with containers, joined by VXLANs of the kernel; a daemon on the first one, whose tenants are
/// its containers.
pub struct Site {
    daemon: Option<Child>,
    scratch: Directory,
    pub lab: Lab,
}

impl Site {
    /// With a daemon.
    pub fn new() -> Self {
        let mut site = Self::without_daemon();
        site.start_daemon();
        site
    }

    /// With a daemon and so many containers on each host.
    pub fn with_tenants(count: usize) -> Self {
        let mut site = Self::with_containers(count);
        site.start_daemon();
        site
    }

    /// With a daemon that follows the kernel's device; the hosts are routers for their containers.
    pub fn routed() -> Self {
        let mut site = Self::with_overlay(1, Overlay::Flannel);
        site.start_daemon_following();
        site
    }

    /// With a daemon that follows the kernel's device, on a bridge.
    pub fn following() -> Self {
        let mut site = Self::without_daemon();
        site.start_daemon_following();
        site
    }

    /// With a daemon whose network is the link of the hosts: its tenants are the first host itself, and a macvlan device in
    /// its container.
    pub fn native() -> Self {
        let mut site = Self::without_daemon();
        let (host, far) = (site.lab.host(0), site.lab.host(1));
        let container = site.lab.container(0, 0);
        let device = host.interface();
        let station = "02:00:00:00:0a:00";
        let run = |host: &Host, arguments: &str| {
            let mut command = host.command("ip").expect("the lab is up");
            ended_well(command.args(arguments.split(' ')).output());
        };
        let namespace = container.namespace();
        run(
            host,
            &format!(
                "link add mv0 link {device} netns {namespace} address {station} type macvlan mode bridge"
            ),
        );
        run(container, "link set mv0 up");
        run(container, "address add 10.77.0.50/24 dev mv0");
        run(container, "address add fd77::50/64 dev mv0 nodad");
        for (at, host) in [(1, host), (2, far)] {
            run(
                host,
                &format!("address add fd77::{at}/64 dev {device} nodad"),
            );
        }
        let tenants = [
            (MacAddress(host.mac()).to_string(), 1),
            (station.to_owned(), 50),
        ];
        let mut sections = String::new();
        for (at, (mac, last)) in tenants.into_iter().enumerate() {
            sections += &listener(at);
            sections += &format!(
                "classes = {CLASSES}\n[listener.endpoint]\nnetwork = \"line\"\nmac = \"{mac}\"\n\
                 addresses = [\"10.77.0.{last}/24\", \"fd77::{last}/64\"]\n"
            );
        }
        sections += &format!(
            "[[network]]\nname = \"line\"\ncarrier = \"native\"\ninterface = \"{device}\"\n"
        );
        site.start_daemon_with(&sections);
        site
    }

    /// Before there is a daemon.
    pub fn without_daemon() -> Self {
        Self::with_containers(1)
    }

    fn with_containers(containers: usize) -> Self {
        Self::with_overlay(containers, Overlay::Bridged)
    }

    fn with_overlay(containers: usize, overlay: Overlay) -> Self {
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
                .status()
                .expect("ip");
            assert!(status.success());
        }
        Self {
            daemon: None,
            scratch: Directory::new(),
            lab,
        }
    }

    /// Starts the daemon, whose tenants may send frames.
    pub fn start_daemon(&mut self) {
        let addresses = format!("\"{}\", \"{}\"", self.there().address(), six(1));
        self.start_daemon_that_knows(&addresses, "");
    }

    /// Starts the daemon, which knows stations by their hardware addresses alone, as it does of a device that it follows.
    pub fn start_daemon_without_addresses(&mut self) {
        self.start_daemon_that_knows("", "");
    }

    /// The same, and the last tenant is held to a stream that it has declared.
    pub fn start_daemon_that_holds_to(&mut self, stream: &str) {
        self.start_daemon_that_knows("", &format!("[[listener.stream]]\n{stream}\n"));
    }

    fn start_daemon_following(&mut self) {
        let network = format!(
            "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:{OVERLAY_ID}\"\nfollow = \"{OVERLAY_DEVICE}\"\n"
        );
        let sections = self.tenant(0) + &network;
        self.start_daemon_with(&sections);
    }

    fn start_daemon_that_knows(&mut self, addresses: &str, stream: &str) {
        let containers = self.lab.config().containers;
        let mut sections: String = (0..containers).map(|at| self.tenant(at)).collect();
        sections += stream;
        let there = self.there();
        sections += &format!(
            "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:{OVERLAY_ID}\"\n\
             stations = [{{ mac = \"{mac}\", vtep = \"{vtep}\", addresses = [{addresses}] }}]\n",
            mac = MacAddress(there.mac()),
            vtep = self.lab.host(1).address(),
        );
        self.start_daemon_with(&sections);
    }

    /// Starts the daemon, whose tenant may not.
    pub fn start_daemon_without_endpoint(&mut self) {
        self.start_daemon_with(&listener(0));
    }

    /// The listener of a container here, and its endpoint.
    fn tenant(&self, at: usize) -> String {
        let container = self.lab.container(0, at);
        let (mac, four) = (MacAddress(container.mac()), container.address());
        // The first one has an address of either version.
        let more = match at {
            0 => format!(", \"{}/64\"", six(0)),
            _ => String::new(),
        };
        // 0xdead: what isochron sends over layer 2.
        listener(at)
            + &format!(
                "classes = {CLASSES}\n[listener.endpoint]\nnetwork = \"pods\"\nmac = \"{mac}\"\n\
                 addresses = [\"{four}/{length}\"{more}]\nethertypes = [0xdead]\nvlans = [100]\n",
                length = container.prefix_length(),
            )
    }

    fn start_daemon_with(&mut self, sections: &str) {
        // As much tolerance as there is: a busy machine is not what is tested.
        let text = format!(
            "[node]\nname = \"h1\"\naddress = \"{}\"\n{}[departure]\ntolerance_us = 1000000\n\
             [admin]\nsocket = \"DIR/admin.sock\"\n{sections}",
            self.lab.host(0).address(),
            self.scratch.security(),
        );
        let place = self.scratch.join("").display().to_string();
        let text = text.replace("DIR/", &place);
        std::fs::write(self.scratch.join("takt.toml"), text).expect("write");
        let notify = self.scratch.join("notify.sock");
        let _ = std::fs::remove_file(&notify);
        let notifications = UnixDatagram::bind(&notify).expect("bind");
        notifications
            .set_read_timeout(Some(Duration::from_millis(20)))
            .expect("a timeout");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.scratch.join("log"))
            .expect("a log");
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
            .stderr(log)
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

    /// Ends the daemon with SIGKILL.
    pub fn kill_daemon(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill().expect("it runs");
            daemon.wait().expect("it ends");
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap_or_default()
    }

    /// The container whose programs are preloaded.
    pub fn here(&self) -> &Host {
        self.lab.container(0, 0)
    }

    /// The container that is sent to, of another host.
    pub fn there(&self) -> &Host {
        self.lab.container(1, 0)
    }

    /// Its addresses.
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.there().address().into(), six(1)]
    }

    /// The IPv6 address here.
    pub fn six(&self) -> IpAddr {
        six(0)
    }

    /// A command here, under the preload, with the daemon's socket.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_of(0, program)
    }

    /// A command in a container of this host, as its tenant.
    pub fn command_of(&self, tenant: usize, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.command_in(self.lab.container(0, tenant), tenant, program)
    }

    /// A command anywhere, as a tenant of the daemon's.
    pub fn command_in(
        &self,
        host: &Host,
        tenant: usize,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Command {
        let mut command = preloaded(host, program);
        let socket = format!("takt{tenant}.sock");
        command.env("TAKT_SOCKET", self.scratch.join(&socket));
        command
    }

    /// Frames that the daemon has sent for its tenant.
    pub fn sent(&self) -> u64 {
        self.counters().sent
    }

    /// What it counts of them.
    pub fn counters(&self) -> proto::NetworkCounters {
        self.ask(async |client| {
            let request = proto::ListNetworksRequest {};
            let networks = client.list_networks(request).await.expect("the networks");
            let network = networks.into_inner().networks.swap_remove(0);
            network.counters.expect("counters")
        })
    }

    /// What became of frames with a launch time, by class.
    pub fn departures(&self) -> Vec<proto::ClassDepartures> {
        self.ask(async |client| {
            let request = proto::ListSchedulesRequest {};
            let links = client.list_schedules(request).await.expect("the schedules");
            links.into_inner().links.swap_remove(0).classes
        })
    }

    /// What the first tenant's programs have told of datagrams that did not go by the runtime.
    pub fn unserved(&self) -> Vec<(String, u64)> {
        self.ask(async |client| {
            let request = proto::ListListenersRequest {};
            let listeners = client.list_listeners(request).await.expect("the listeners");
            let listeners = listeners.into_inner().listeners.into_iter();
            let all = listeners.flat_map(|listener| listener.unserved);
            all.map(|one| (one.reason, one.count)).collect()
        })
    }

    /// Names of the programs that are attached.
    pub fn sessions(&self) -> Vec<String> {
        self.ask(async |client| {
            let request = proto::ListSessionsRequest::default();
            let sessions = client.list_sessions(request).await.expect("the sessions");
            let sessions = sessions.into_inner().sessions.into_iter();
            sessions.map(|session| session.name).collect()
        })
    }

    fn ask<T>(&self, question: impl AsyncFnOnce(&mut Client) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let socket = self.scratch.join("admin.sock");
            let mut client = connect(&socket).await.expect("the admin API");
            question(&mut client).await
        })
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

/// The listener of a tenant.
fn listener(at: usize) -> String {
    format!("[[listener]]\npath = \"DIR/takt{at}.sock\"\nidentity = \"tenant {at}\"\n")
}

/// The IPv6 address of the first container of a host.
fn six(host: usize) -> IpAddr {
    format!("{SIX}{}", host + 1).parse().expect("an address")
}

/// An ordinary socket in a container.
pub struct Listener(UdpSocket);

impl Listener {
    /// For either version of IP. One for a test: a port that was closed may be open for a moment longer, in
    /// processes that other tests are starting.
    pub fn new(host: &Host) -> Self {
        Self::bound(host, std::net::Ipv6Addr::UNSPECIFIED.into())
    }

    /// The same for an address.
    pub fn bound(host: &Host, address: IpAddr) -> Self {
        let _inside = host.enter().expect("the lab is up");
        let socket = UdpSocket::bind(SocketAddr::from((address, PORT))).expect("bind");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        // SAFETY: four bytes at the value are readable.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_RCVBUFFORCE,
                (&raw const RECEIVE_BUFFER).cast(),
                size_of_val(&RECEIVE_BUFFER) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
        Self(socket)
    }

    /// The next datagram, and who sent it.
    pub fn next(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 65_536];
        loop {
            match self.0.recv_from(&mut buffer) {
                Ok((length, from)) => return (buffer[..length].to_vec(), from),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => panic!("a datagram: {error}"),
            }
        }
    }

    /// The next datagram, which begins with its transmission time in `CLOCK_TAI` and must not come before.
    pub fn next_in_time(&self) -> (Vec<u8>, SocketAddr) {
        let (payload, from) = self.next();
        let now = tai();
        let launch = i64::from_ne_bytes(*payload.first_chunk().expect("a time"));
        assert!(now >= launch, "{} ns before its time", launch - now);
        (payload[8..].to_vec(), from)
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.0.set_nonblocking(true).expect("an option");
        let empty = self.0.peek(&mut [0]).is_err();
        self.0.set_nonblocking(false).expect("an option");
        empty
    }

    /// Answers somebody.
    pub fn answer(&self, payload: &[u8], to: SocketAddr) {
        self.0.send_to(payload, to).expect("sent");
    }
}

/// `CLOCK_TAI` now, in nanoseconds.
pub fn tai() -> i64 {
    takt_clock::Clock::now(&takt_clock::SystemTai).as_nanos()
}
