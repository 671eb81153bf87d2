//! A lane waits for nobody: not for the kernel's routing tables either, which a datapath asks for its peers.

mod support;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use support::{App, config, free_port, start};
use takt_datapath::stack::NextHops;
use takt_datapath::{
    Capabilities, ConnectError, Datagram, Datapath, DatapathKind, Frame, OpenError, PeerHandle,
    Port, PortCounters, PortRequest, ReserveError, Resolver, Way,
};
use takt_datapath_udp::{UdpConfig, UdpDatapath};
use takt_runtime::Runtime;
use takt_session::Qos;
use takt_session::layout::Outcome;
use takt_testing::until_true;
use takt_time::{TaiTime, TrafficClass};

/// Index of the loopback interface in every network namespace.
const LOOPBACK: u32 = 1;

/// Kernel UDP that asks the kernel's tables for the ways to its peers, as AF_XDP does.
struct Routed {
    inner: UdpDatapath,
    tables: Arc<NextHops>,
}

struct RoutedPort {
    inner: Box<dyn Port>,
    ways: Ways,
    peers: HashMap<PeerHandle, Way>,
}

#[derive(Clone)]
struct Ways(Arc<NextHops>);

impl Resolver for Ways {
    fn resolve(&self, remote: SocketAddr, answered: Box<dyn FnOnce() + Send>) -> Option<Way> {
        let asked = self.0.ask(remote.ip(), None, 0, answered);
        Some(Arc::new(asked.expect("the monitor runs")))
    }
}

impl Datapath for Routed {
    fn kind(&self) -> DatapathKind {
        self.inner.kind()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
        Ok(Box::new(RoutedPort {
            inner: self.inner.open(request)?,
            ways: Ways(self.tables.clone()),
            peers: HashMap::new(),
        }))
    }
}

impl Port for RoutedPort {
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }

    fn connect(&mut self, remote: SocketAddr) -> Result<PeerHandle, ConnectError> {
        let asked = self.ways.0.watch(remote.ip(), None, 0);
        self.connect_at_once(remote, asked.ok().map(Arc::new))
    }

    fn resolver(&self) -> Option<Box<dyn Resolver>> {
        Some(Box::new(self.ways.clone()))
    }

    fn connect_at_once(
        &mut self,
        remote: SocketAddr,
        way: Option<Way>,
    ) -> Result<PeerHandle, ConnectError> {
        let way = way.or_else(|| self.ways.resolve(remote, Box::new(|| {})));
        let peer = self.inner.connect(remote)?;
        self.peers.extend(way.map(|way| (peer, way)));
        Ok(peer)
    }

    fn reaches(&mut self, peer: PeerHandle) -> bool {
        self.peers.get(&peer).is_some_and(|way| way.is_known())
    }

    fn disconnect(&mut self, peer: PeerHandle) {
        self.peers.remove(&peer);
        self.inner.disconnect(peer);
    }

    fn max_payload(&self, peer: PeerHandle) -> usize {
        let known = self.peers.get(&peer).is_some_and(|way| way.is_known());
        if known {
            self.inner.max_payload(peer)
        } else {
            0
        }
    }

    fn reserve(&mut self, peer: PeerHandle) -> Result<Frame, ReserveError> {
        self.inner.reserve(peer)
    }

    fn payload(&mut self, frame: &Frame) -> &mut [u8] {
        self.inner.payload(frame)
    }

    fn commit(&mut self, frame: Frame, len: usize, class: TrafficClass, launch: Option<TaiTime>) {
        self.inner.commit(frame, len, class, launch);
    }

    fn cancel(&mut self, frame: Frame) {
        self.inner.cancel(frame);
    }

    fn flush(&mut self) -> bool {
        self.inner.flush()
    }

    fn receive(&mut self, budget: usize, deliver: &mut dyn FnMut(Datagram<'_>)) -> usize {
        self.inner.receive(budget, deliver)
    }

    fn receive_costs_syscall(&self) -> bool {
        self.inner.receive_costs_syscall()
    }

    fn wait_fds(&self) -> Vec<BorrowedFd<'_>> {
        self.inner.wait_fds()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// Keeps the thread that asks the tables from its work, until what is returned is dropped.
fn hold(tables: &Arc<NextHops>) -> Sender<()> {
    let (release, released) = channel::<()>();
    let (holding, held) = channel();
    let tables = tables.clone();
    std::thread::spawn(move || {
        let mut first = Some((holding, released));
        let interface = tables.on_interface_change(LOOPBACK, move |_| {
            if let Some((holding, released)) = first.take() {
                holding.send(()).expect("the test waits");
                // An error: released.
                let _ = released.recv();
            }
        });
        drop(interface);
    });
    held.recv().expect("there is a loopback interface");
    release
}

fn routed(port: u16, peer: u16, tables: &Arc<NextHops>) -> Runtime {
    let datapath = Routed {
        inner: UdpDatapath::new(UdpConfig::default()),
        tables: tables.clone(),
    };
    let datapath: Arc<dyn Datapath> = Arc::new(datapath);
    Runtime::start(config(port, &[peer]), &[datapath], Vec::new()).expect("runtime starts")
}

#[test]
fn routing_tables_that_do_not_answer_hold_neither_a_lane_nor_the_control_thread() {
    let tables = Arc::new(NextHops::start().expect("netlink"));
    let release = hold(&tables);
    let (left, right) = (free_port(), free_port());
    let here = routed(left, right, &tables);
    let there = start(config(right, &[left]));
    let (mut a, mut b) = (App::attach(here.handle()), App::attach(there.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let (mut from_a, mut to_a) = (a.source(sa, 1, 0), a.sink(sa, 2, 0));
    let (mut to_b, mut from_b) = (b.sink(sb, 1, 0), b.source(sb, 2, 0));

    // What comes from the peer is taken all the same.
    b.emit_until_heard(&mut from_b, b"from there");
    assert_eq!(a.receive(&mut to_a).1, b"from there");
    // What is for it is told as not sent, once that is not waited for any longer.
    until_true("the peer is not reached", || {
        a.emit(&mut from_a, 0, b"lost", 1);
        a.completion(&mut from_a).outcome == Outcome::Unreachable as u32
    });
    // Lane and control thread are at work.
    let mut own = a.sink(sa, 3, 0);
    let mut to_own = a.source(sa, 3, 0);
    a.emit(&mut to_own, 8, b"here", 2);
    assert_eq!(a.receive(&mut own).1, b"here");

    drop(release);
    until_true("the peer is reached", || {
        a.emit(&mut from_a, 0, b"found", 3);
        a.completion(&mut from_a).outcome == Outcome::Sent as u32
    });
    assert_eq!(b.receive(&mut to_b).1, b"found");
}

#[test]
fn no_message_is_lost_between_a_peers_wish_and_the_answer_about_the_way_there() {
    let tables = Arc::new(NextHops::start().expect("netlink"));
    let (left, right) = (free_port(), free_port());
    let here = routed(left, right, &tables);
    let there = start(config(right, &[left]));
    let (mut a, mut b) = (App::attach(here.handle()), App::attach(there.handle()));
    let (sa, sb) = (a.stream(Qos::slow()), b.stream(Qos::slow()));
    let mut source = a.source(sa, 1, 0);
    let mut sink = b.sink(sb, 1, 0);
    // The first that is not for nobody arrives.
    until_true("a sink is known", || {
        a.emit(&mut source, 0, b"first", 1);
        let outcome = Outcome::from_number(a.completion(&mut source).outcome);
        assert!(
            matches!(outcome, Some(Outcome::NoSink | Outcome::Sent)),
            "{outcome:?}"
        );
        outcome == Some(Outcome::Sent)
    });
    assert_eq!(b.receive(&mut sink).1, b"first");
}
