//! Request and reply of the `tracking` report, byte by byte.
//!
//! ```text
//! request                              reply
//!  0 version 6, type 1, 0, 0            0 version 6, type 2, 0, 0
//!  4 command 33                         4 command 33
//!  6 attempt                            6 reply 5
//!  8 sequence                           8 status 0
//! 12 zeros, up to 104                  10 zeros
//!                                      16 sequence, zeros
//!                                      28 reference id
//!                                      32 address: 16 bytes, family, 0
//!                                      52 stratum, leap status
//!                                      56 time of the last update: high, low, nanoseconds
//!                                      68 nine numbers, see `number`
//!                                     104
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Octets of a request, and of its reply.
pub const LENGTH: usize = 104;

const VERSION: u8 = 6;
const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const TRACKING: u16 = 33;
const TRACKING_REPLY: u16 = 5;
/// Half of 64-bit seconds that says that they have 32 bits only.
const NO_HIGH_SECONDS: u32 = 0x7fff_ffff;
/// The reference of a chronyd that is its own source (`local`).
const LOCAL: u32 = 0x7f7f_0101;

/// What chronyd takes its time from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Nothing.
    None,
    /// Its own clock, by `local` of its configuration.
    Local,
    /// A server.
    Server(IpAddr),
    /// A reference clock, by its identifier: `PHC0`.
    Clock(String),
}

/// Leap seconds (RFC 5905, figure 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leap {
    /// None is ahead.
    Normal,
    /// One will be inserted.
    Insert,
    /// One will be deleted.
    Delete,
    /// Not synchronised.
    Unsynchronised,
}

/// The report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tracking {
    /// The source.
    pub reference: Reference,
    /// Hops from a reference clock.
    pub stratum: u16,
    /// Leap seconds, and whether chronyd is synchronised.
    pub leap: Leap,
    /// When the source was last heard: UTC, nanoseconds since 1970.
    pub updated_utc_ns: i64,
    /// The system clock minus chronyd's estimate of true time, nanoseconds.
    pub offset_ns: i64,
    /// Round trip to the reference clock, nanoseconds.
    pub root_delay_ns: u64,
    /// How far off the estimate may be besides, nanoseconds. Grows by itself while nothing is heard.
    pub root_dispersion_ns: u64,
    /// Time between the last two updates, nanoseconds.
    pub update_interval_ns: u64,
}

impl Tracking {
    /// The most that the system clock is off, as chrony's documentation states it: |offset| + root dispersion +
    /// half of the root delay.
    pub fn bound_ns(&self) -> u64 {
        self.offset_ns
            .unsigned_abs()
            .saturating_add(self.root_dispersion_ns)
            .saturating_add(self.root_delay_ns.div_ceil(2))
    }
}

/// Why a datagram is no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// Shorter than a report, or than the head of one.
    #[error("{0} octets, too few for its report")]
    Length(usize),
    /// Not version 6.
    #[error("by version {0} of its protocol: Takt speaks 6, that of chrony 2.2 and later")]
    Version(u8),
    /// To somebody else, or to an earlier question.
    #[error("a question with the number {found}")]
    Sequence {
        /// The number.
        found: u32,
    },
    /// Not allowed, for instance.
    #[error("with status {0}: is `cmdallow` or `bindcmdaddress` of its configuration in the way?")]
    Status(u16),
    /// Something else.
    #[error("with another report ({0})")]
    Kind(u16),
    /// A leap status that does not exist.
    #[error("the leap status {0}, which does not exist")]
    Leap(u16),
}

/// The question for the report.
pub fn request(sequence: u32) -> [u8; LENGTH] {
    let mut request = [0; LENGTH];
    request[0] = VERSION;
    request[1] = REQUEST;
    request[4..6].copy_from_slice(&TRACKING.to_be_bytes());
    request[8..12].copy_from_slice(&sequence.to_be_bytes());
    request
}

/// Reads the answer to the question with the number `sequence`.
///
/// # Errors
/// [`ReplyError`].
pub fn parse(reply: &[u8], sequence: u32) -> Result<Tracking, ReplyError> {
    let short = ReplyError::Length(reply.len());
    let head = reply.first_chunk::<28>().ok_or(short)?;
    if head[1] != REPLY {
        return Err(ReplyError::Kind(head[1].into()));
    }
    if head[0] != VERSION {
        return Err(ReplyError::Version(head[0]));
    }
    let found = u32_at(head, 16);
    if found != sequence {
        return Err(ReplyError::Sequence { found });
    }
    let status = u16_at(head, 8);
    if status != 0 {
        return Err(ReplyError::Status(status));
    }
    let kind = u16_at(head, 6);
    if kind != TRACKING_REPLY {
        return Err(ReplyError::Kind(kind));
    }
    let reply = reply.first_chunk::<LENGTH>().ok_or(short)?;
    let seconds = |at: usize| number(u32_at(reply, at)) * 1e9;
    // Casts of floating point numbers hold at the ends of the range.
    let positive = |at: usize| seconds(at).max(0.0).ceil() as u64;
    let leap = u16_at(reply, 54);
    Ok(Tracking {
        reference: reference(reply),
        stratum: u16_at(reply, 52),
        leap: match leap {
            0 => Leap::Normal,
            1 => Leap::Insert,
            2 => Leap::Delete,
            3 => Leap::Unsynchronised,
            _ => return Err(ReplyError::Leap(leap)),
        },
        updated_utc_ns: time(u32_at(reply, 56), u32_at(reply, 60), u32_at(reply, 64)),
        // As chronyd has it, positive is slow.
        offset_ns: -seconds(68) as i64,
        root_delay_ns: positive(92),
        root_dispersion_ns: positive(96),
        update_interval_ns: positive(100),
    })
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn reference(reply: &[u8; LENGTH]) -> Reference {
    let id = u32_at(reply, 28);
    match id {
        0 => return Reference::None,
        LOCAL => return Reference::Local,
        _ => {}
    }
    let mut address = [0; 16];
    address.copy_from_slice(&reply[32..48]);
    match u16_at(reply, 48) {
        1 => Reference::Server(Ipv4Addr::from_bits(u32_at(reply, 32)).into()),
        2 => Reference::Server(Ipv6Addr::from(address).into()),
        _ => {
            let name = id.to_be_bytes();
            let name = name.iter().take_while(|octet| **octet != 0);
            Reference::Clock(name.map(|octet| octet.escape_ascii().to_string()).collect())
        }
    }
}

fn time(high: u32, low: u32, nanos: u32) -> i64 {
    let high = if high == NO_HIGH_SECONDS { 0 } else { high };
    let seconds = ((u64::from(high) << 32) | u64::from(low)) as i64;
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanos.into())
}

/// A number: seven bits of exponent and 25 of coefficient, both signed; the coefficient is a fraction of 2^25.
fn number(bits: u32) -> f64 {
    let exponent = (bits as i32) >> 25;
    let coefficient = ((bits << 7) as i32) >> 7;
    f64::from(coefficient) * 2f64.powi(exponent - 25)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As chronyd makes it from a number that fits.
    fn encoded(value: f64) -> u32 {
        let mut exponent = 25;
        let mut coefficient = value;
        while coefficient != 0.0 && coefficient.abs() < f64::from(1 << 23) {
            coefficient *= 2.0;
            exponent -= 1;
        }
        while coefficient.abs() >= f64::from(1 << 24) {
            coefficient /= 2.0;
            exponent += 1;
        }
        (((exponent as u32) & 0x7f) << 25) | ((coefficient as i32 as u32) & 0x1ff_ffff)
    }

    fn reply(sequence: u32, change: impl FnOnce(&mut [u8; LENGTH])) -> [u8; LENGTH] {
        let mut reply = [0; LENGTH];
        reply[..2].copy_from_slice(&[VERSION, REPLY]);
        reply[4..6].copy_from_slice(&TRACKING.to_be_bytes());
        reply[6..8].copy_from_slice(&TRACKING_REPLY.to_be_bytes());
        reply[16..20].copy_from_slice(&sequence.to_be_bytes());
        change(&mut reply);
        reply
    }

    fn put(reply: &mut [u8], at: usize, value: u32) {
        reply[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }

    #[test]
    fn a_report_is_read_field_by_field() {
        let bytes = reply(7, |bytes| {
            put(bytes, 28, 0x0a00_0001);
            put(bytes, 32, 0x0a00_0001);
            bytes[48..50].copy_from_slice(&1u16.to_be_bytes());
            bytes[52..54].copy_from_slice(&3u16.to_be_bytes());
            put(bytes, 56, NO_HIGH_SECONDS);
            put(bytes, 60, 1_700_000_000);
            put(bytes, 64, 5);
            put(bytes, 68, encoded(0.000_001));
            put(bytes, 92, encoded(0.002));
            put(bytes, 96, encoded(0.000_5));
            put(bytes, 100, encoded(64.0));
        });
        let tracking = parse(&bytes, 7).expect("a report");
        assert_eq!(
            tracking.reference,
            Reference::Server(IpAddr::from([10, 0, 0, 1]))
        );
        assert_eq!((tracking.stratum, tracking.leap), (3, Leap::Normal));
        assert_eq!(tracking.updated_utc_ns, 1_700_000_000_000_000_005);
        let near = |value: u64, expected: u64| value.abs_diff(expected) <= 2;
        assert!(
            near(tracking.offset_ns.unsigned_abs(), 1_000),
            "{tracking:?}"
        );
        assert!(tracking.offset_ns < 0, "slow: {tracking:?}");
        assert!(near(tracking.root_delay_ns, 2_000_000), "{tracking:?}");
        assert!(near(tracking.root_dispersion_ns, 500_000), "{tracking:?}");
        assert_eq!(tracking.update_interval_ns, 64_000_000_000);
        assert!(near(tracking.bound_ns(), 1_501_000), "{tracking:?}");
    }

    #[test]
    fn references_have_names() {
        let of = |id: u32| {
            let bytes = reply(0, |bytes| put(bytes, 28, id));
            parse(&bytes, 0).expect("a report").reference
        };
        assert_eq!(of(0), Reference::None);
        assert_eq!(of(LOCAL), Reference::Local);
        assert_eq!(of(0x5048_4330), Reference::Clock("PHC0".into()));
        assert_eq!(of(0x4700_0000), Reference::Clock("G".into()));
        assert_eq!(of(0x1b5b_4100), Reference::Clock("\\x1b[A".into()));
    }

    #[test]
    fn what_is_no_report_is_told() {
        let good = reply(7, |_| {});
        assert_eq!(parse(&good[..27], 7), Err(ReplyError::Length(27)));
        assert_eq!(parse(&good[..103], 7), Err(ReplyError::Length(103)));
        assert_eq!(parse(&good, 8), Err(ReplyError::Sequence { found: 7 }));
        let with = |at: usize, value: u8| parse(&reply(7, |bytes| bytes[at] = value), 7);
        assert_eq!(with(0, 5), Err(ReplyError::Version(5)));
        assert_eq!(with(1, REQUEST), Err(ReplyError::Kind(1)));
        assert_eq!(with(7, 14), Err(ReplyError::Kind(14)));
        assert_eq!(with(9, 2), Err(ReplyError::Status(2)));
        assert_eq!(with(55, 9), Err(ReplyError::Leap(9)));
    }

    #[test]
    fn numbers_have_a_signed_exponent() {
        for value in [0.0, 1.0, -1.0, 1e-9, -37.5, 123_456.0] {
            let read = number(encoded(value));
            assert!((read - value).abs() <= value.abs() * 1e-6, "{value} {read}");
        }
    }

    proptest! {
        #[test]
        fn no_reply_makes_reading_fail(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200),
            valid in any::<bool>(),
        ) {
            if valid && bytes.len() >= 28 {
                bytes[..28].copy_from_slice(&reply(7, |_| {})[..28]);
            }
            if let Ok(tracking) = parse(&bytes, 7) {
                tracking.bound_ns();
            }
        }

        #[test]
        fn numbers_are_read_to_their_last_digit(value in -1e15f64..1e15) {
            let read = number(encoded(value));
            prop_assert!((read - value).abs() <= value.abs() / f64::from(1 << 22));
        }
    }
}
