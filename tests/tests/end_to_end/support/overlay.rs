//! Containers whose frames a node sends over a VXLAN.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};

use takt::{FrameOptions, FrameSource, Outcome, Session, SourceOptions, Token, Wait};
use takt_lab::{Host, Lab, LabConfig, OVERLAY_ID};
use takt_wire::ethernet::MacAddress;
use takt_wire::frame::{UdpFlow, UdpHeaderTemplate};
use takt_wire::ip::Dscp;

use super::Datapath;
use takt_testing::{PATIENCE, until};

/// UDP ports of the sending and of the receiving socket.
pub const PORTS: [u16; 2] = [5000, 5001];

/// Hosts with a container each.
pub fn lab(hosts: usize) -> Lab {
    let config = LabConfig {
        hosts,
        containers: 1,
        ..LabConfig::default()
    };
    Lab::scratch(&config).expect("a lab")
}

/// The hardware address of a host, as it is written.
pub fn mac(host: &Host) -> String {
    MacAddress(host.mac()).to_string()
}

/// The sections of a node whose tenant is a container of its host. Late is what is later than this machine may be.
pub fn sections(container: &Host, stations: &str, datapath: Datapath) -> String {
    format!(
        "[listener.endpoint]\nnetwork = \"pods\"\nmac = \"{}\"\naddresses = [\"{}/16\"]\n\
         [[network]]\nname = \"pods\"\ncarrier = \"vxlan:{OVERLAY_ID}\"\n{stations}\n\
         [departure]\ntolerance_us = 1000000\n{}",
        mac(container),
        container.address(),
        datapath.section(),
    )
}

/// The entry of a container that is behind a host.
pub fn station(container: &Host, host: &Host) -> String {
    let (mac, vtep, address) = (mac(container), host.address(), container.address());
    format!("stations = [{{ mac = \"{mac}\", vtep = \"{vtep}\", addresses = [\"{address}\"] }}]")
}

/// A source of frames over a datapath.
pub fn frames(session: &Session, datapath: Datapath) -> FrameSource {
    let stream = session.stream(datapath.qos()).expect("a stream");
    stream
        .frame_source(SourceOptions::default())
        .expect("a source of frames")
}

/// Datagrams from one container's socket to another's.
pub fn flow(from: &Host, to: &Host, dst_mac: [u8; 6]) -> UdpFlow {
    UdpFlow {
        src_mac: MacAddress(from.mac()),
        dst_mac: MacAddress(dst_mac),
        vlan: None,
        src: SocketAddr::from((from.address(), PORTS[0])),
        dst: SocketAddr::from((to.address(), PORTS[1])),
        dscp: Dscp::EXPEDITED,
        hop_limit: 64,
    }
}

/// A datagram of a flow as a frame.
pub fn frame(flow: &UdpFlow, payload: &[u8]) -> Vec<u8> {
    let headers = UdpHeaderTemplate::new(flow).expect("a flow");
    let mut frame = vec![0; headers.header_len() + payload.len()];
    frame[headers.header_len()..].copy_from_slice(payload);
    headers
        .emit(&mut frame, payload.len(), 1, true)
        .expect("it fits");
    frame
}

/// Sends bytes as a frame.
pub fn emit(source: &FrameSource, frame: &[u8], options: &FrameOptions) -> Token {
    let mut buffer = source
        .buffer_wait(frame.len(), Wait::For(PATIENCE))
        .expect("a buffer");
    buffer.copy_from_slice(frame);
    source.emit(buffer, options).expect("emitted")
}

/// Waits for what becomes of a frame.
pub fn outcome(source: &FrameSource, token: Token) -> Outcome {
    until("the frame is dealt with", || match source.outcome(token) {
        Outcome::Pending => None,
        outcome => Some(outcome),
    })
}

/// Sends bytes as a frame, and waits for what becomes of it.
pub fn send(source: &FrameSource, frame: &[u8], options: &FrameOptions) -> Outcome {
    outcome(source, emit(source, frame, options))
}

/// An ordinary socket of a host. One that was closed at the same address may live on for a moment: in a child that another
/// test is starting, until it executes its program.
pub fn udp_socket(host: &Host, address: impl Into<SocketAddr>) -> UdpSocket {
    let address = address.into();
    let _inside = host.enter().expect("the lab is up");
    let socket = until("the address is free", || match UdpSocket::bind(address) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => None,
        bound => Some(bound.expect("bind")),
    });
    socket.set_read_timeout(Some(PATIENCE)).expect("a time-out");
    socket
}
