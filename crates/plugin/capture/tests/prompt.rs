//! What a socket without a ring hands out.
//!
//! Needs root.

use std::net::UdpSocket;
use std::process::Command;

use takt_capture::socket::PromptSocket;
use takt_testing::until_true;

/// A frame of AVTP with a tag of VLAN 5 and priority 3, and one without.
const FRAMES: &str = "
import socket
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(('lo', 0))
addresses = bytes.fromhex('91e0f0000001020000000001')
out.send(addresses + bytes.fromhex('8100600522f0') + bytes(50))
out.send(addresses + bytes.fromhex('22f0') + bytes(50))
";

fn done(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output();
    let done = done.expect(program);
    assert!(done.status.success(), "{done:?}");
}

/// The calling thread is in a network namespace of its own from now on. False: it may not.
fn alone() -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: packet sockets need root");
        return false;
    }
    // SAFETY: no memory is handed over, and of this thread nothing else is changed.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
    done("ip", &["link", "set", "lo", "up"]);
    true
}

#[test]
fn frames_have_the_tags_that_the_kernel_has_taken_out() {
    if !alone() {
        return;
    }
    let mut socket = PromptSocket::open("lo").expect("a socket");
    done("python3", &["-c", FRAMES]);
    let mut got = Vec::new();
    until_true("both are captured", || {
        let taken = socket.take(|meta, bytes| {
            if bytes.starts_with(&[0x91, 0xe0]) {
                assert_eq!(meta.length as usize, bytes.len());
                got.push(bytes[12..18].to_vec());
            }
        });
        taken.expect("captured");
        got.len() == 2
    });
    assert_eq!(got[0], [0x81, 0, 0x60, 5, 0x22, 0xf0]);
    assert_eq!(got[1], [0x22, 0xf0, 0, 0, 0, 0]);
}

#[test]
fn what_had_no_room_is_told_with_the_next_packet() {
    if !alone() {
        return;
    }
    let mut socket = PromptSocket::open("lo").expect("a socket");
    let to = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let address = to.local_addr().expect("an address");
    let from = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    // More than there is room for.
    const SENT: u32 = 2000;
    for _ in 0..SENT {
        from.send_to(&[1; 60_000], address).expect("sent");
    }
    let (mut taken, mut drops) = (0, 0);
    let mut take = |socket: &mut PromptSocket| {
        let got = socket.take_with_drops(|_, bytes, more| {
            taken += u32::from(bytes[42] == 1);
            drops += more;
        });
        got.expect("captured");
        (taken, drops)
    };
    until_true("all that had room are taken", || {
        let before = take(&mut socket);
        take(&mut socket) == before
    });
    assert_eq!(take(&mut socket).1, 0);
    from.send_to(&[1; 100], address).expect("sent");
    let mut told = (0, 0);
    until_true("one that comes later", || {
        told = take(&mut socket);
        told.0 + told.1 == SENT + 1
    });
    assert!(told.0 > 100 && told.1 > 100, "{told:?}");
    assert_eq!(socket.statistics().expect("counted").drops, told.1);
    assert_eq!(socket.statistics().expect("counted").drops, 0);
}
