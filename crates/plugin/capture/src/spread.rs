//! Which of several sockets a packet goes to: a program of classic BPF that the kernel runs (packet(7), `PACKET_FANOUT_CBPF`).
//!
//! All packets of a flow go to one socket, as do RTP and its RTCP one port above. The kernel's own hash
//! (`PACKET_FANOUT_HASH`) keeps neither the first fragment of a datagram with whole ones nor RTCP with RTP. Over IPv6,
//! packets of a flow with extension headers and without may go to two.

use libc::sock_filter;

/// By what packets are kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// 5-tuple, either direction; what is no IP packet by destination address.
    Tuples,
    /// Destination address.
    Destinations,
}

/// Where offsets count from the Ethernet header, from the network header, and where the kernel says what a packet is
/// (`linux/filter.h`: `SKF_LL_OFF`, `SKF_NET_OFF`, `SKF_AD_OFF`).
const LINK: u32 = -0x20_0000_i32 as u32;
const NETWORK: u32 = -0x10_0000_i32 as u32;
const PROTOCOL: u32 = -0x1000_i32 as u32;
/// Knuth's multiplier: upper bits of the product are well mixed.
const MIX: u32 = 0x9e37_79b1;
/// Jumps to where the hash is in the accumulator, and to where it is in the first word of memory.
const MIXED: u8 = 0xff;
const KEPT: u8 = 0xfe;

const LD: u32 = libc::BPF_LD | libc::BPF_ABS;
const WORD: u32 = LD | libc::BPF_W;
const HALF: u32 = LD | libc::BPF_H;
const BYTE: u32 = LD | libc::BPF_B;
const JEQ: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const JSET: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const XOR: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X;
const SHIFT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;

fn op(code: u32, k: u32) -> sock_filter {
    jump(code, k, 0, 0)
}

fn jump(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

/// The exclusive or of words at these offsets, into the first word of memory.
fn fold(words: &[u32]) -> Vec<sock_filter> {
    let mut program = vec![op(WORD, words[0])];
    for word in &words[1..] {
        program.extend([
            op(libc::BPF_MISC | libc::BPF_TAX, 0),
            op(WORD, *word),
            op(XOR, 0),
        ]);
    }
    program.push(op(libc::BPF_ST, 0));
    program
}

/// Both ports, at the index register behind the network header: halved, so that RTP's and RTCP's are the same, and put to what
/// is in the first word of memory.
fn ports() -> [sock_filter; 9] {
    const INDEXED: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_IND;
    [
        op(INDEXED, NETWORK),
        op(SHIFT, 1),
        op(libc::BPF_ST, 1),
        op(INDEXED, NETWORK + 2),
        op(SHIFT, 1),
        op(libc::BPF_LDX | libc::BPF_MEM, 1),
        op(XOR, 0),
        op(libc::BPF_LDX | libc::BPF_MEM, 0),
        op(XOR, 0),
    ]
}

/// Goes on if the accumulator is the number of a protocol with ports.
fn with_ports() -> [sock_filter; 4] {
    [
        jump(JEQ, 6, 3, 0),
        jump(JEQ, 17, 2, 0),
        jump(JEQ, 132, 1, 0),
        jump(JEQ, 33, 0, KEPT),
    ]
}

/// The program. What it returns counts modulo the number of sockets; a packet that is too short goes to the first one.
pub(crate) fn program(spread: Spread) -> Vec<sock_filter> {
    let destination = [op(WORD, LINK + 2)];
    let mut program = Vec::new();
    if spread == Spread::Tuples {
        let mut v4 = fold(&[NETWORK + 12, NETWORK + 16]);
        // A later fragment has no ports.
        v4.extend([op(HALF, NETWORK + 6), jump(JSET, 0x1fff, KEPT, 0)]);
        v4.push(op(BYTE, NETWORK + 9));
        v4.extend(with_ports());
        v4.push(op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, NETWORK));
        v4.extend(ports());
        v4.push(jump(libc::BPF_JMP | libc::BPF_JA, 0, MIXED, 0));

        let addresses: Vec<u32> = (0..8).map(|word| NETWORK + 8 + 4 * word).collect();
        let mut v6 = fold(&addresses);
        // Behind extension headers ports do not count.
        v6.push(op(BYTE, NETWORK + 6));
        v6.extend(with_ports());
        v6.push(op(libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM, 40));
        v6.extend(ports());
        v6.push(jump(libc::BPF_JMP | libc::BPF_JA, 0, MIXED, 0));

        program.push(op(HALF, PROTOCOL));
        program.push(jump(JEQ, libc::ETH_P_IP as u32, 0, v4.len() as u8));
        program.extend(v4);
        // Its own accumulator is that of the first line: no jump that is taken has come by here.
        program.push(op(HALF, PROTOCOL));
        program.push(jump(JEQ, libc::ETH_P_IPV6 as u32, 0, v6.len() as u8));
        program.extend(v6);
    }
    program.extend(destination);
    program.push(jump(libc::BPF_JMP | libc::BPF_JA, 0, MIXED, 0));
    let kept = program.len();
    program.push(op(libc::BPF_LD | libc::BPF_MEM, 0));
    let mixed = program.len();
    program.extend([
        op(libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K, MIX),
        op(SHIFT, 16),
        op(libc::BPF_RET | libc::BPF_A, 0),
    ]);
    // Forward jumps of more than 255 do not occur: the program has fewer lines.
    for (at, line) in program[..kept].iter_mut().enumerate() {
        let to = |target: usize| (target - at - 1) as u8;
        if u32::from(line.code) == libc::BPF_JMP | libc::BPF_JA {
            line.k = u32::from(to(if line.jt == KEPT { kept } else { mixed }));
            line.jt = 0;
            continue;
        }
        for jump in [&mut line.jt, &mut line.jf] {
            match *jump {
                KEPT => *jump = to(kept),
                MIXED => *jump = to(mixed),
                _ => {}
            }
        }
    }
    program
}
