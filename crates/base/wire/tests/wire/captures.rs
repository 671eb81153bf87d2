//! Frames that Linux 6.18 sent over a veth pair with checksum offload off, captured by an
//! AF_PACKET socket. 192.0.2.1 and 2001:db8::1, port 4660, send to .2 and ::2, port 22136.

/// The bytes that hexadecimal digits stand for; white space is skipped.
pub fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex
        .chars()
        .filter_map(|c| c.to_digit(16))
        .map(|digit| digit as u8)
        .collect();
    digits
        .chunks(2)
        .map(|pair| pair[0] << 4 | pair[1])
        .collect()
}

/// UDP over IPv4, "takt!", with expedited forwarding.
pub const IPV4: &str = "
    020000000002 020000000001 0800
    45b8 0021 0000 4000 4011 b610 c0000201 c0000202
    1234 5678 000d 124e 74616b7421";

/// The same without UDP checksum (SO_NO_CHECK): best effort, "takt-nocheck".
pub const IPV4_NO_CHECKSUM: &str = "
    020000000002 020000000001 0800
    4500 0028 0000 4000 4011 b6c1 c0000201 c0000202
    1234 5678 0014 0000 74616b742d6e6f636865636b";

/// UDP over IPv6, "takt over v6", with expedited forwarding and a flow label.
pub const IPV6: &str = "
    020000000002 020000000001 86dd
    6b8e1d50 0014 1140 20010db8000000000000000000000001 20010db8000000000000000000000002
    1234 5678 0014 dca3 74616b74206f766572207636";

/// The headers of the first fragment of a UDP datagram over IPv4 with 1604 bytes of payload.
/// Behind them came "takt" and 1468 times "f".
pub const IPV4_FRAGMENT: &str = "
    020000000002 020000000001 0800
    4500 05dc 9785 2000 4011 3988 c0000201 c0000202
    1234 5678 064c 26d0 74616b74";

/// The answer of a host without that port: ICMP over IPv4.
pub const ICMP: &str = "
    020000000001 020000000002 0800
    45d8 003d 7979 0000 4001 7c6b c0000202 c0000201
    0303 811f 00000000
    45b8 0021 0000 4000 4011 b610 c0000201 c0000202 1234 5678 000d 124e 74616b7421";

/// VXLAN network 0x012345 to port 4789, and inside it UDP over IPv4 from
/// 10.9.0.1 to 10.9.0.2, "takt in vxlan".
pub const VXLAN: &str = "
    020000000002 020000000001 0800
    4500 005b 9787 0000 4011 5f07 c0000201 c0000202
    db4f 12b5 0047 336c
    08000000 01234500
    020000000a02 020000000a01 0800
    4500 0029 0000 4000 4011 26b0 0a090001 0a090002
    1234 5678 0015 c3c9 74616b7420696e2076786c616e";

/// Who has 192.0.2.2? Tell 192.0.2.1. (Asked of the last known holder.)
pub const ARP_REQUEST: &str = "
    020000000002 020000000001 0806
    0001 0800 06 04 0001 020000000001 c0000201 000000000000 c0000202";

/// 192.0.2.2 is at 02:00:00:00:00:02.
pub const ARP_REPLY: &str = "
    020000000001 020000000002 0806
    0001 0800 06 04 0002 020000000002 c0000202 020000000001 c0000201";
