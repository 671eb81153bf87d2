//! Runs in the virtual machine: carries out cases and writes down what the kernel did.
//!
//! Usage: `oracle-guest CASES RESULTS`. One line of JSON per case goes to RESULTS, a serial line.

use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::{io, mem, ptr};

mod datapath;

use takt_oracle::{
    Case, ETHERNET_TO_PAYLOAD, ETHERTYPE, Frame, HEADER, Observed, PEER_PORT, Report,
};

/// More than a command of the set-up takes.
const COMMAND_NS: i64 = 80_000_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let text = std::fs::read(&arguments[1]).expect("the cases");
    let cases: Vec<Case> = serde_json::from_slice(&text).expect("cases");
    let results = std::fs::OpenOptions::new().write(true).open(&arguments[2]);
    let mut results = io::BufWriter::new(results.expect("a serial line"));
    for (number, case) in cases.iter().enumerate() {
        println!("case {number} of {}: {:?}", cases.len(), case.kind);
        let observed = run(case);
        let line = serde_json::to_string(&observed).expect("JSON");
        writeln!(results, "{line}")
            .and_then(|()| results.flush())
            .expect("written");
    }
}

fn run(case: &Case) -> Observed {
    let mut observed = Observed::default();
    let plain = Packets::open(&case.device);
    let launch = Packets::open(&case.device);
    launch.set_launch_times(case.frames.iter().any(|frame| frame.deadline));
    let capture = Packets::open(&case.capture);
    capture.listen();
    let start = now() + COMMAND_NS * (case.setup.len() as i64 + 1);
    observed.start_ns = start;
    for command in &case.setup {
        shell(command, start, &mut observed.failures);
    }
    if now() > start {
        observed.failures.push("the set-up took too long".into());
    }
    let mut later = case.later.iter().peekable();
    let mut change = |until: i64, observed: &mut Observed| {
        while let Some((at, command)) = later.next_if(|(at, _)| *at <= until) {
            sleep_until(start + at);
            shell(command, start, &mut observed.failures);
            observed.changed.push(now());
        }
    };
    let mut sender = case
        .by_datapath()
        .then(|| datapath::Sender::open(case, &mut observed.failures));
    for (number, frame) in case.frames.iter().enumerate() {
        change(frame.at_ns, &mut observed);
        sleep_until(start + frame.at_ns);
        let socket = if frame.launch_ns.is_some() {
            &launch
        } else {
            &plain
        };
        let octets = octets(number, frame);
        let before = now();
        match &mut sender {
            Some(sender) => sender.send(number, frame, start),
            None => socket.send(frame, start, &octets),
        }
        observed.sent.push((before, now()));
    }
    change(case.run_ns, &mut observed);
    sleep_until(start + case.run_ns);
    observed.captured = capture.captured();
    observed.reports = launch.reports();
    observed.lost = sender.map_or(0, |mut sender| sender.lost());
    let mut ignored = Vec::new();
    shell(
        &format!("tc qdisc del dev {} root", case.device),
        0,
        &mut ignored,
    );
    observed
}

/// Runs a command whose `base-time` is counted from `start`.
fn shell(command: &str, start: i64, failures: &mut Vec<String>) {
    let mut words = Vec::new();
    let mut base = false;
    for word in command.split_whitespace().filter(|word| *word != "\\") {
        match word.parse::<i64>() {
            Ok(offset) if base => words.push((start + offset).to_string()),
            _ => words.push(word.to_owned()),
        }
        base = word == "base-time";
    }
    let output = Command::new(&words[0]).args(&words[1..]).output();
    let output = output.expect("a command of the initial file system");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        failures.push(format!("{}: {}", words.join(" "), said.trim()));
    }
}

/// A frame that carries its number.
fn octets(number: usize, frame: &Frame) -> Vec<u8> {
    let mut octets = vec![0; frame.len];
    octets[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    octets[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    octets[12..HEADER].copy_from_slice(&ETHERTYPE.to_be_bytes());
    octets[HEADER..HEADER + 8].copy_from_slice(&(number as u64).to_be_bytes());
    octets
}

/// The number of a captured frame, if it is one of ours.
fn number(octets: &[u8]) -> Option<usize> {
    let word = |at: usize| Some(u16::from_be_bytes(*octets.get(at..)?.first_chunk()?));
    let at = match word(12)? {
        ETHERTYPE => HEADER,
        0x0800 if word(HEADER + 22)? == PEER_PORT => ETHERNET_TO_PAYLOAD,
        _ => return None,
    };
    let number = octets.get(at..)?.first_chunk()?;
    Some(u64::from_be_bytes(*number) as usize)
}

/// TAI, nanoseconds. Nobody has told this kernel of leap seconds: it is UTC too.
fn now() -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_TAI, &mut time) };
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

fn sleep_until(nanos: i64) {
    let time = libc::timespec {
        tv_sec: nanos / 1_000_000_000,
        tv_nsec: nanos % 1_000_000_000,
    };
    // SAFETY: `time` outlives the call; no remainder is asked for.
    while unsafe {
        libc::clock_nanosleep(libc::CLOCK_TAI, libc::TIMER_ABSTIME, &time, ptr::null_mut())
    } == libc::EINTR
    {}
}

/// A packet socket.
struct Packets {
    socket: libc::c_int,
    address: libc::sockaddr_ll,
}

impl Packets {
    /// A socket for `device`, which may have a network namespace in front.
    fn open(device: &str) -> Self {
        let Some((namespace, device)) = device.split_once('/') else {
            return Self::here(device);
        };
        enter(&format!("/run/netns/{namespace}"));
        let socket = Self::here(device);
        enter("/proc/1/ns/net");
        socket
    }

    fn here(device: &str) -> Self {
        // SAFETY: no pointer is passed.
        let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0) };
        check(socket);
        let name = CString::new(device).expect("a name");
        // SAFETY: `name` is a C string that outlives the call.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        assert_ne!(index, 0, "no interface {device}");
        // SAFETY: all zeros are a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        address.sll_protocol = ETHERTYPE.to_be();
        address.sll_halen = 6;
        Self { socket, address }
    }

    fn set<T>(&self, option: libc::c_int, value: &T) {
        let length = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer and the length are those of `value`.
        check(unsafe {
            libc::setsockopt(
                self.socket,
                libc::SOL_SOCKET,
                option,
                ptr::from_ref(value).cast(),
                length,
            )
        });
    }

    fn set_launch_times(&self, deadline: bool) {
        let flags = libc::SOF_TXTIME_REPORT_ERRORS
            | if deadline {
                libc::SOF_TXTIME_DEADLINE_MODE
            } else {
                0
            };
        let value = libc::sock_txtime {
            clockid: libc::CLOCK_TAI,
            flags,
        };
        self.set(libc::SO_TXTIME, &value);
    }

    /// Captures what passes the interface, outgoing frames of other sockets too.
    fn listen(&self) {
        self.set(libc::SO_RCVBUFFORCE, &(64i32 << 20));
        self.set(libc::SO_TIMESTAMPNS, &1i32);
        let mut address = self.address;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: the address and its length belong together.
        check(unsafe {
            libc::bind(
                self.socket,
                ptr::from_ref(&address).cast(),
                mem::size_of_val(&address) as libc::socklen_t,
            )
        });
    }

    fn send(&self, frame: &Frame, start: i64, octets: &[u8]) {
        self.set(libc::SO_PRIORITY, &frame.priority);
        let mut part = libc::iovec {
            iov_base: octets.as_ptr().cast_mut().cast(),
            iov_len: octets.len(),
        };
        let mut control = Control::default();
        // SAFETY: all zeros are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = ptr::from_ref(&self.address).cast_mut().cast();
        message.msg_namelen = mem::size_of_val(&self.address) as libc::socklen_t;
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        if let Some(launch) = frame.launch_ns {
            let launch = (start + launch) as u64;
            // SAFETY: the room behind `msg_control` is that of one header with eight octets, which
            // CMSG_FIRSTHDR points into once the lengths are set.
            unsafe {
                message.msg_control = control.0.as_mut_ptr().cast();
                message.msg_controllen = libc::CMSG_SPACE(8) as usize;
                let header = libc::CMSG_FIRSTHDR(&message);
                (*header).cmsg_level = libc::SOL_SOCKET;
                (*header).cmsg_type = libc::SCM_TXTIME;
                (*header).cmsg_len = libc::CMSG_LEN(8) as usize;
                ptr::copy_nonoverlapping(launch.to_ne_bytes().as_ptr(), libc::CMSG_DATA(header), 8);
            }
        }
        // SAFETY: everything that `message` points to outlives the call. What it answers is of no
        // account: a frame that the queueing discipline drops is an error to some kernels, and what
        // becomes of frames is looked at where they come out.
        unsafe { libc::sendmsg(self.socket, &message, 0) };
    }

    /// Every frame of ours that came, with the time that the kernel gave it.
    fn captured(&self) -> Vec<(usize, i64)> {
        let mut captured = Vec::new();
        while let Some(message) = self.receive(libc::MSG_DONTWAIT) {
            let Some(number) = number(&message.octets) else {
                continue;
            };
            let stamp = message.control(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS);
            let stamp = stamp.expect("a time stamp");
            let word = |at: usize| i64::from_ne_bytes(stamp[at..at + 8].try_into().expect("eight"));
            captured.push((number, word(0) * 1_000_000_000 + word(8)));
        }
        captured
    }

    /// What the error queue holds.
    fn reports(&self) -> Vec<Report> {
        const PACKET_TX_TIMESTAMP: libc::c_int = 16;
        let mut reports = Vec::new();
        while let Some(message) = self.receive(libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE) {
            let error = message.control(libc::SOL_PACKET, PACKET_TX_TIMESTAMP);
            let error = error.expect("an extended error");
            let word = |at: usize| u32::from_ne_bytes(error[at..at + 4].try_into().expect("four"));
            reports.push(Report {
                errno: word(0),
                origin: error[4],
                code: error[6],
                info: word(8),
                data: word(12),
            });
        }
        reports
    }

    fn receive(&self, flags: libc::c_int) -> Option<Message> {
        let mut octets = vec![0u8; 65_536];
        let mut control = Control::default();
        let mut part = libc::iovec {
            iov_base: octets.as_mut_ptr().cast(),
            iov_len: octets.len(),
        };
        // SAFETY: all zeros are a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = mem::size_of_val(&control);
        // SAFETY: everything that `message` points to outlives the call and is as long as it says.
        let length = unsafe { libc::recvmsg(self.socket, &mut message, flags) };
        let length = usize::try_from(length).ok()?;
        octets.truncate(length);
        let mut controls = Vec::new();
        // SAFETY: the kernel has filled the control data; the macros stay within its length.
        unsafe {
            let mut header = libc::CMSG_FIRSTHDR(&message);
            while !header.is_null() {
                let data = libc::CMSG_DATA(header);
                let length = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
                let value = std::slice::from_raw_parts(data, length).to_vec();
                controls.push(((*header).cmsg_level, (*header).cmsg_type, value));
                header = libc::CMSG_NXTHDR(&message, header);
            }
        }
        Some(Message { octets, controls })
    }
}

impl Drop for Packets {
    fn drop(&mut self) {
        // SAFETY: the socket is ours and used no more.
        unsafe { libc::close(self.socket) };
    }
}

/// Room for control data, aligned as its headers.
#[repr(align(8))]
struct Control([u8; 256]);

impl Default for Control {
    fn default() -> Self {
        Self([0; 256])
    }
}

struct Message {
    octets: Vec<u8>,
    controls: Vec<(libc::c_int, libc::c_int, Vec<u8>)>,
}

impl Message {
    fn control(&self, level: libc::c_int, kind: libc::c_int) -> Option<&[u8]> {
        let found = self
            .controls
            .iter()
            .find(|(l, k, _)| (*l, *k) == (level, kind));
        found.map(|(_, _, value)| value.as_slice())
    }
}

/// Goes into a network namespace.
fn enter(path: &str) {
    let file = File::open(path).expect("a network namespace");
    // SAFETY: the descriptor is open for as long as the call lasts.
    check(unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) });
}

fn check(result: libc::c_int) {
    assert!(result >= 0, "{}", io::Error::last_os_error());
}
