//! The XDP program of the bare AF_XDP peers: one UDP port goes to the socket of the frame's queue.
//!
//! A few instructions, assembled here and loaded by bpf(2), so that the floor depends on no loader.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Commands of bpf(2), as `linux/bpf.h` numbers them.
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;

const MAP_TYPE_XSKMAP: u32 = 17;
const PROG_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;

/// A socket per queue, up to this many queues.
const QUEUES: u32 = 64;

/// One instruction: `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

const fn instruction(
    code: u8,
    destination: u8,
    source: u8,
    offset: i16,
    immediate: i32,
) -> Instruction {
    Instruction {
        code,
        registers: source << 4 | destination,
        offset,
        immediate,
    }
}

/// Instruction codes by what they do (Linux `Documentation/bpf/standardization/instruction-set.rst`).
mod code {
    pub(super) const LOAD_WORD: u8 = 0x61;
    pub(super) const LOAD_HALF: u8 = 0x69;
    pub(super) const LOAD_BYTE: u8 = 0x71;
    pub(super) const LOAD_MAP: u8 = 0x18;
    pub(super) const MOVE: u8 = 0xb7;
    pub(super) const COPY: u8 = 0xbf;
    pub(super) const ADD: u8 = 0x07;
    pub(super) const JUMP_IF_GREATER: u8 = 0x2d;
    pub(super) const JUMP_IF_NOT: u8 = 0x55;
    pub(super) const CALL: u8 = 0x85;
    pub(super) const EXIT: u8 = 0x95;
}

/// Passes everything to the kernel but UDP over option-less IPv4 to `port`.
fn assemble(map: BorrowedFd<'_>, port: u16) -> [Instruction; 21] {
    use code::*;
    const XDP_PASS: i32 = 2;
    const REDIRECT_MAP: i32 = 51;
    /// `src_reg` of a 64-bit load whose immediate is a map's file descriptor.
    const MAP_DESCRIPTOR: u8 = 1;
    let big_endian = |value: u16| i32::from(u16::from_ne_bytes(value.to_be_bytes()));
    // Each jump leads to `pass`.
    [
        instruction(LOAD_WORD, 2, 1, 0, 0), // r2 = context.data
        instruction(LOAD_WORD, 3, 1, 4, 0), // r3 = context.data_end
        instruction(COPY, 4, 2, 0, 0),
        instruction(ADD, 4, 0, 0, 42), // r4 = behind Ethernet, IPv4 and UDP headers
        instruction(JUMP_IF_GREATER, 4, 3, 14, 0),
        instruction(LOAD_HALF, 5, 2, 12, 0), // EtherType
        instruction(JUMP_IF_NOT, 5, 0, 12, big_endian(0x0800)),
        instruction(LOAD_BYTE, 5, 2, 14, 0), // version and header length
        instruction(JUMP_IF_NOT, 5, 0, 10, 0x45),
        instruction(LOAD_BYTE, 5, 2, 23, 0), // protocol
        instruction(JUMP_IF_NOT, 5, 0, 8, 17),
        instruction(LOAD_HALF, 5, 2, 36, 0), // destination port
        instruction(JUMP_IF_NOT, 5, 0, 6, big_endian(port)),
        instruction(LOAD_WORD, 2, 1, 16, 0), // r2 = context.rx_queue_index
        instruction(LOAD_MAP, 1, MAP_DESCRIPTOR, 0, map.as_raw_fd()),
        instruction(0, 0, 0, 0, 0), // upper half of the 64-bit load
        instruction(MOVE, 3, 0, 0, XDP_PASS), // what to do when the queue has no socket
        instruction(CALL, 0, 0, 0, REDIRECT_MAP),
        instruction(EXIT, 0, 0, 0, 0),
        instruction(MOVE, 0, 0, 0, XDP_PASS), // pass:
        instruction(EXIT, 0, 0, 0, 0),
    ]
}

/// The program, attached to an interface for as long as this lives.
#[derive(Debug)]
pub(super) struct Program {
    sockets: OwnedFd,
    _link: OwnedFd,
}

impl Program {
    /// Attaches the program to interface `index` of the calling thread's network namespace, by the
    /// driver if it can, else by the kernel.
    pub(super) fn attach(index: u32, port: u16) -> io::Result<Self> {
        let map = bpf(
            MAP_CREATE,
            &MapCreate {
                kind: MAP_TYPE_XSKMAP,
                key_size: 4,
                value_size: 4,
                entries: QUEUES,
            },
        )?;
        let instructions = assemble(map.as_fd(), port);
        let program = bpf(
            PROG_LOAD,
            &ProgLoad {
                kind: PROG_TYPE_XDP,
                instruction_count: instructions.len() as u32,
                instructions: instructions.as_ptr() as u64,
                license: c"Apache-2.0".as_ptr() as u64,
            },
        )?;
        let link = LinkCreate {
            program: program.as_raw_fd(),
            interface: index,
            attach_type: ATTACH_TYPE_XDP,
            flags: 0,
        };
        Ok(Self {
            sockets: map,
            _link: bpf(LINK_CREATE, &link)?,
        })
    }

    /// Directs the frames of `queue` to `socket`.
    pub(super) fn direct(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd();
        let update = MapUpdate {
            map: self.sockets.as_raw_fd(),
            padding: 0,
            key: &raw const queue as u64,
            value: &raw const value as u64,
            flags: 0,
        };
        call(MAP_UPDATE_ELEM, &update).map(drop)
    }
}

// The beginnings of `union bpf_attr`; the kernel takes what is missing for zero.

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: i32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct ProgLoad {
    kind: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
}

#[repr(C)]
struct LinkCreate {
    program: i32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// Arguments of bpf(2): plain data whose addresses, if any, are of live memory of the right size.
trait Arguments {}
impl Arguments for MapCreate {}
impl Arguments for MapUpdate {}
impl Arguments for ProgLoad {}
impl Arguments for LinkCreate {}

fn call(command: libc::c_int, arguments: &impl Arguments) -> io::Result<libc::c_long> {
    // SAFETY: the pointer and size are those of a live `repr(C)` value that begins a `union bpf_attr`;
    // addresses in it are of live memory, as `Arguments` promises.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const *arguments,
            size_of_val(arguments),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// Runs a command whose result is a file descriptor.
fn bpf(command: libc::c_int, arguments: &impl Arguments) -> io::Result<OwnedFd> {
    let descriptor = i32::try_from(call(command, arguments)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}
