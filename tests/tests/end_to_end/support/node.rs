//! A daemon as a process in a host of a lab, and its admin API.

use std::fs::File;
use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use taktd::admin::client::{Client, connect};
use taktd::admin::proto;

use takt::Qos;
use takt_lab::{Host, Lab, LabConfig};
use takt_testing::{Directory, PATIENCE, repository, until};

/// The peering port of every node.
pub const PORT: u16 = 7400;

/// Which technology a test runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datapath {
    Udp,
    Xdp,
}

impl Datapath {
    pub fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Xdp => "xdp",
        }
    }

    /// What an application asks for to get it.
    pub fn qos(self) -> Qos {
        match self {
            Self::Udp => Qos::slow(),
            Self::Xdp => Qos::fast(),
        }
    }

    /// The section that a node needs for it.
    pub fn section(self) -> &'static str {
        match self {
            Self::Udp => "",
            Self::Xdp => "[datapath.xdp]\ninterface = \"eth0\"\n",
        }
    }
}

/// A daemon in a host.
pub struct Node {
    pub directory: Directory,
    host: Host,
    child: Child,
    /// Before the daemon in its command line.
    wrapper: Vec<String>,
}

impl Node {
    /// A node with these peers, one socket for everybody, and more sections; `DIR` in them stands for its
    /// directory.
    pub fn start(host: &Host, peers: &[Ipv4Addr], sections: &str) -> Self {
        Self::start_under(&[], host, peers, sections)
    }

    /// As [`start`](Self::start), with a program that runs the daemon and its arguments.
    pub fn start_under(wrapper: &[&str], host: &Host, peers: &[Ipv4Addr], sections: &str) -> Self {
        let directory = Directory::new();
        configure(&directory, host, peers, sections);
        let wrapper: Vec<String> = wrapper.iter().map(|&word| word.to_owned()).collect();
        let child = spawn(&directory, host, &wrapper);
        Self {
            directory,
            host: host.clone(),
            child,
            wrapper,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where applications attach.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("takt.sock")
    }

    /// Kills the daemon with SIGKILL.
    pub fn kill(&mut self) -> ExitStatus {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it ends")
    }

    /// Starts it again with the same configuration.
    pub fn restart(&mut self) {
        self.child = spawn(&self.directory, &self.host, &self.wrapper);
    }

    /// Whether the daemon still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_none()
    }

    pub fn log(&self) -> String {
        log(&self.directory)
    }

    pub fn admin(&self) -> Admin {
        Admin::new(self.directory.join("admin.sock"))
    }

    /// Waits until it has as many peers in this state.
    pub fn await_peers(&self, count: usize, state: proto::PeerState) {
        let mut admin = self.admin();
        until(&format!("{count} peers {state:?}"), || {
            let peers = admin.peers();
            (peers.iter().filter(|peer| peer.state() == state).count() == count).then_some(())
        });
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Ended already is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon of {} said:\n{}", self.host.name(), self.log());
        }
    }
}

/// Writes a configuration. What is above the first section belongs to `[node]`.
pub fn configure(directory: &Directory, host: &Host, peers: &[Ipv4Addr], sections: &str) {
    let (node, sections) = match sections.starts_with('[') {
        true => ("", sections),
        false => sections.split_at(sections.find("\n[").map_or(sections.len(), |at| at + 1)),
    };
    // With the keys that other sections may name.
    let security = directory.security();
    let mut text = format!(
        "[node]\nname = \"{}\"\naddress = \"{}\"\nport = {PORT}\n{node}\
         {}[admin]\nsocket = \"DIR/admin.sock\"\n[[listener]]\npath = \"DIR/takt.sock\"\n{sections}",
        host.name(),
        host.address(),
        if sections.contains("[security]") {
            String::new()
        } else {
            security
        },
    );
    for peer in peers {
        text += &format!("[[peer]]\naddress = \"{peer}:{PORT}\"\n");
    }
    let place = directory.join("").display().to_string();
    let text = text.replace("DIR/", &place);
    std::fs::write(directory.join("takt.toml"), text).expect("write");
}

/// The daemon in a host, with the configuration of the directory, not started.
pub fn command(directory: &Directory, host: &Host, wrapper: &[String]) -> Command {
    let daemon =
        std::env::var("TAKTD").unwrap_or_else(|_| env!("CARGO_BIN_EXE_takt-test-daemon").into());
    let words: Vec<&str> = wrapper
        .iter()
        .map(String::as_str)
        .chain([&*daemon])
        .collect();
    let mut command = host.command(words[0]).expect("the lab is up");
    command
        .args(&words[1..])
        .arg("--config")
        .arg(directory.join("takt.toml"))
        .env_remove("RUST_LOG")
        .env_remove("NOTIFY_SOCKET")
        .env_remove("WATCHDOG_USEC")
        .stdin(Stdio::null());
    command
}

fn log(directory: &Directory) -> String {
    std::fs::read_to_string(directory.join("log")).unwrap_or_default()
}

fn spawn(directory: &Directory, host: &Host, wrapper: &[String]) -> Child {
    let path = directory.join("notify.sock");
    let _ = std::fs::remove_file(&path);
    let notifications = UnixDatagram::bind(&path).expect("bind");
    notifications
        .set_read_timeout(Some(Duration::from_millis(20)))
        .expect("a timeout");
    let log_file = File::options()
        .create(true)
        .append(true)
        .open(directory.join("log"))
        .expect("a log");
    let mut child = command(directory, host, wrapper)
        .env("NOTIFY_SOCKET", &path)
        .stderr(log_file)
        .spawn()
        .expect("the daemon");
    let mut buffer = [0; 4096];
    let ready = until("the daemon is ready", || {
        if let Ok(length) = notifications.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]);
            return text.lines().any(|line| line == "READY=1").then_some(true);
        }
        child.try_wait().expect("its state").map(|_| false)
    });
    assert!(ready, "the daemon says: {}", log(directory));
    child
}

/// Datagrams sent by each port of a node.
pub fn sent_by(node: &Node, datapath: &str) -> u64 {
    let lanes = node.admin().node().lanes;
    let ports = lanes.into_iter().flat_map(|lane| lane.ports);
    ports
        .filter(|port| port.datapath == datapath)
        .map(|port| port.counters.expect("counters").tx_datagrams)
        .sum()
}

/// A directory with the plugin of a datapath that is built apart; `None`, and a note, without its library's headers, of
/// which this is one.
pub fn datapath_plugin(name: &str, header: &str) -> Option<Directory> {
    if !Path::new(header).exists() {
        println!("skipped: there is no {header} (`make setup` installs it)");
        return None;
    }
    let target = repository().join("target/datapaths");
    let built = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--quiet", "--target-dir"])
        .arg(&target)
        .current_dir(repository().join(format!("crates/plugin/datapath-{name}")))
        .status();
    assert!(built.expect("cargo starts").success());
    let directory = Directory::new();
    let name = format!("libtakt_datapath_{name}.so");
    std::fs::copy(target.join("debug").join(&name), directory.join(&name)).expect("a copy");
    Some(directory)
}

/// Two nodes that are peers of each other, each on a host of a lab.
pub struct Pair {
    // Before the lab: a lab goes down when nothing runs in it.
    pub nodes: [Node; 2],
    pub lab: Lab,
}

impl Pair {
    /// Over this technology, on a cable.
    pub fn over(datapath: Datapath) -> Self {
        Self::with(&LabConfig::default(), datapath.section())
    }

    /// In this lab, with these sections of configuration.
    pub fn with(config: &LabConfig, sections: &str) -> Self {
        let lab = Lab::scratch(config).expect("a lab");
        let node = |own: usize, other: usize| {
            Node::start(lab.host(own), &[lab.host(other).address()], sections)
        };
        let nodes = [node(0, 1), node(1, 0)];
        let pair = Self { nodes, lab };
        pair.await_peers(proto::PeerState::Up);
        pair
    }

    /// Waits until each shows the other in this state.
    pub fn await_peers(&self, state: proto::PeerState) {
        for node in &self.nodes {
            node.await_peers(1, state);
        }
    }
}

/// A node's admin API.
pub struct Admin {
    runtime: tokio::runtime::Runtime,
    client: Client,
}

impl Admin {
    fn new(socket: PathBuf) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("an executor");
        let client = runtime.block_on(connect(&socket)).expect("the admin API");
        Self { runtime, client }
    }

    pub fn node(&mut self) -> proto::Node {
        let asked = self.client.get_status(proto::GetStatusRequest {});
        let answer = self.runtime.block_on(asked).expect("the status");
        answer.into_inner().node.expect("a node")
    }

    /// Begins a capture.
    pub fn capture(mut self, identities: &[String], snap: u32) -> Result<Capturing, tonic::Status> {
        let identities = identities.to_vec();
        let request = proto::CaptureRequest { identities, snap };
        let answers = self.runtime.block_on(self.client.capture(request))?;
        let mut capturing = Capturing {
            answers: answers.into_inner(),
            admin: self,
            packets: Vec::new(),
            lost: 0,
        };
        // The first answer tells that it has begun.
        capturing.take();
        Ok(capturing)
    }

    pub fn peers(&mut self) -> Vec<proto::Peer> {
        let asked = self.client.list_peers(proto::ListPeersRequest {});
        let answer = self.runtime.block_on(asked).expect("the peers");
        answer.into_inner().peers
    }

    /// Whether the peer is new, or its keys are.
    pub fn add_peer(&mut self, address: &str, key: &str, next_key: &str) -> bool {
        let [address, key, next_key] = [address, key, next_key].map(str::to_owned);
        let request = proto::AddPeerRequest {
            address,
            key,
            next_key,
        };
        let asked = self.client.add_peer(request);
        let answer = self.runtime.block_on(asked).expect("a peer");
        answer.into_inner().added
    }

    pub fn next_key(&mut self) -> String {
        let asked = self.client.next_key(proto::NextKeyRequest {});
        let answer = self.runtime.block_on(asked).expect("a key");
        answer.into_inner().key
    }

    pub fn switch_key(&mut self) -> String {
        let asked = self.client.switch_key(proto::SwitchKeyRequest::default());
        let answer = self.runtime.block_on(asked).expect("switched");
        let answer = answer.into_inner();
        assert!(answer.switched);
        answer.key
    }

    pub fn sessions(&mut self) -> Vec<proto::Session> {
        let asked = self
            .client
            .list_sessions(proto::ListSessionsRequest::default());
        let answer = self.runtime.block_on(asked).expect("the sessions");
        answer.into_inner().sessions
    }

    pub fn move_session(&mut self, session: u64, lane: u32) {
        let request = proto::MoveSessionRequest { session, lane };
        let moved = self.runtime.block_on(self.client.move_session(request));
        moved.expect("moved");
    }

    /// A page of them.
    pub fn session_page(&mut self, first: u64, limit: u32) -> proto::ListSessionsResponse {
        let asked = self.client.list_sessions(proto::ListSessionsRequest {
            first,
            limit,
            ..proto::ListSessionsRequest::default()
        });
        let answer = self.runtime.block_on(asked).expect("the sessions");
        answer.into_inner()
    }

    pub fn listeners(&mut self) -> Vec<proto::ListenerStatus> {
        let asked = self.client.list_listeners(proto::ListListenersRequest {});
        let answer = self.runtime.block_on(asked).expect("the listeners");
        answer.into_inner().listeners
    }

    pub fn datapaths(&mut self) -> Vec<proto::Datapath> {
        let asked = self.client.list_datapaths(proto::ListDatapathsRequest {});
        let answer = self.runtime.block_on(asked).expect("the datapaths");
        answer.into_inner().datapaths
    }

    pub fn network(&mut self, name: &str) -> proto::Network {
        let asked = self.client.list_networks(proto::ListNetworksRequest {});
        let answer = self.runtime.block_on(asked).expect("the networks");
        let mut networks = answer.into_inner().networks.into_iter();
        networks
            .find(|network| network.name == name)
            .expect("it is there")
    }

    /// Installs a schedule on a link of 1 Gb/s; when it begins, TAI nanoseconds.
    pub fn install_schedule(&mut self, datapath: &str, schedule: proto::GateSchedule) -> i64 {
        let request = proto::InstallScheduleRequest {
            datapath: datapath.into(),
            schedule: Some(schedule),
            link_rate_bps: 1_000_000_000,
            ..proto::InstallScheduleRequest::default()
        };
        let asked = self.client.install_schedule(request);
        let answer = self.runtime.block_on(asked).expect("the schedule fits");
        answer.into_inner().begins_ns
    }

    /// The schedule of a datapath's link, and what it counts.
    pub fn schedule(&mut self, datapath: &str) -> proto::LinkSchedule {
        let asked = self.client.list_schedules(proto::ListSchedulesRequest {});
        let answer = self.runtime.block_on(asked).expect("the schedules");
        let mut links = answer.into_inner().links.into_iter();
        let found = links.find(|link| link.datapath == datapath);
        found.expect("it is there")
    }

    /// Enters a station behind a tunnel endpoint.
    pub fn set_station(&mut self, network: &str, mac: &str, vtep: &str) {
        let station = proto::Station {
            mac: mac.into(),
            vtep: vtep.into(),
            ..proto::Station::default()
        };
        let request = proto::SetStationRequest {
            network: network.into(),
            station: Some(station),
        };
        let set = self.runtime.block_on(self.client.set_station(request));
        set.expect("the station is entered");
    }

    pub fn remove_station(&mut self, network: &str, mac: &str) -> bool {
        let request = proto::RemoveStationRequest {
            network: network.into(),
            mac: mac.into(),
            vtep: String::new(),
        };
        let asked = self.client.remove_station(request);
        let answer = self.runtime.block_on(asked).expect("an answer");
        answer.into_inner().removed
    }

    pub fn remove_listener(&mut self, path: &std::path::Path) -> bool {
        let request = proto::RemoveListenerRequest {
            path: path.display().to_string(),
        };
        let asked = self.runtime.block_on(self.client.remove_listener(request));
        asked.expect("an answer").into_inner().removed
    }

    pub fn listener(&mut self, path: &std::path::Path) -> proto::Listener {
        self.listener_status(path).listener.expect("its rights")
    }

    /// A listener with what its sessions hold.
    pub fn listener_status(&mut self, path: &std::path::Path) -> proto::ListenerStatus {
        let asked = self.client.list_listeners(proto::ListListenersRequest {});
        let answer = self.runtime.block_on(asked).expect("the listeners");
        let mut listeners = answer.into_inner().listeners.into_iter();
        let found = listeners.find(|status| {
            let listener = status.listener.as_ref();
            listener.is_some_and(|listener| std::path::Path::new(&listener.path) == path)
        });
        found.expect("it is there")
    }

    /// Sets a listener, or says why not.
    pub fn set_listener(&mut self, listener: proto::Listener) -> Result<(), String> {
        let listener = Some(listener);
        let asked = self.client.set_listener(proto::SetListenerRequest {
            listener,
            keep: false,
            ..proto::SetListenerRequest::default()
        });
        let answer = self.runtime.block_on(asked);
        answer.map(drop).map_err(|status| status.message().into())
    }

    /// How many streams may go another way, or why nothing was mapped.
    pub fn map_channel(&mut self, channel: u64, datapath: &str) -> Result<u32, String> {
        let datapath = datapath.to_owned();
        let request = proto::MapChannelRequest { channel, datapath };
        let answer = self.runtime.block_on(self.client.map_channel(request));
        let streams = answer.map(|answer| answer.into_inner().streams);
        streams.map_err(|refused| refused.message().to_owned())
    }

    /// Has the configuration read again.
    pub fn reload(&mut self) {
        let request = self.client.reload(proto::ReloadRequest {});
        self.runtime.block_on(request).expect("it is reloaded");
    }

    /// What is counted for a channel.
    pub fn channel(&mut self, number: u64) -> proto::ChannelCounters {
        let request = proto::ListChannelsRequest {
            first: number,
            limit: 1,
        };
        let answer = self
            .runtime
            .block_on(self.client.list_channels(request))
            .expect("the channels");
        let channel = answer.into_inner().channels.into_iter().next();
        channel
            .filter(|channel| channel.channel == number)
            .and_then(|channel| channel.counters)
            .expect("the channel is in use")
    }
}

/// A capture that runs.
pub struct Capturing {
    admin: Admin,
    answers: tonic::Streaming<proto::CaptureResponse>,
    packets: Vec<proto::CapturedPacket>,
    lost: u64,
}

impl Capturing {
    fn take(&mut self) {
        let next = async { tokio::time::timeout(PATIENCE, self.answers.message()).await };
        let next = self.admin.runtime.block_on(next).expect("an answer");
        let answer = next.expect("it goes on").expect("it goes on");
        self.packets.extend(answer.packets);
        self.lost = answer.lost;
    }

    /// What it has when this is true.
    pub fn until(
        &mut self,
        done: impl Fn(&[proto::CapturedPacket]) -> bool,
    ) -> Vec<proto::CapturedPacket> {
        while !done(&self.packets) {
            self.take();
        }
        assert_eq!(self.lost, 0);
        std::mem::take(&mut self.packets)
    }

    /// How many copies there are and were left out, together, when this is true of the two.
    pub fn until_count(&mut self, done: impl Fn(u64, u64) -> bool) -> u64 {
        while !done(self.packets.len() as u64, self.lost) {
            self.take();
        }
        self.packets.len() as u64 + self.lost
    }
}
