//! The clock of the physical host that this machine is a guest of, asked by NTP (RFC 5905, section 7.3), as chronyd there answers it.
//!
//! A guest's clock follows its host's, by a device that always has an answer. Whether the host's follows anything is known to the host
//! alone.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use rustix::time::{ClockId, clock_gettime};

use crate::datagram::Asker;

/// Octets of a message without extensions.
pub const LENGTH: usize = 48;
/// Seconds from the epoch of NTP to that of Unix.
const EPOCH: u64 = 2_208_988_800;
/// The reference of a server that follows its own clock (`local` of chronyd): 127.127.1.1.
const LOCAL: u32 = 0x7f7f_0101;
/// How often it is asked; the shortest way counts.
const TRIES: usize = 3;

/// What a host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostReading {
    /// Whether its clock follows a reference.
    pub synchronised: bool,
    /// How many hosts are between it and a primary reference, and itself.
    pub stratum: u8,
    /// This machine's clock minus the host's, nanoseconds.
    pub offset_ns: i64,
    /// How wrong that may be: half of the way there and back, nanoseconds.
    pub error_ns: u64,
    /// The most that the host's clock is off its reference, nanoseconds: half of its root delay, and its root dispersion.
    pub distance_ns: u64,
}

/// Why an answer is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// It is too short, of another version or of another kind.
    #[error("something that is no answer of NTP")]
    Malformed,
    /// It answers something else.
    #[error("what was not asked")]
    Unasked,
    /// The server does not want to be asked ("kiss of death").
    #[error("that it does not want to be asked ({0:?}): allow this machine in its configuration")]
    Refused(String),
}

/// Why a host has no answer.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Nobody listens, or no answer came.
    #[error("the host's NTP server at {address} does not answer: {source}")]
    Silent {
        /// Where.
        address: SocketAddr,
        /// The kernel's words.
        source: io::Error,
    },
    /// The answer is none.
    #[error("the host's NTP server at {address} answers {source}")]
    Answer {
        /// Where.
        address: SocketAddr,
        /// What is wrong with it.
        source: AnswerError,
    },
}

/// A question, which `stamp` tells from others; it says nothing of this machine.
pub fn request(stamp: u64) -> [u8; LENGTH] {
    let mut message = [0; LENGTH];
    // Version 4, a client.
    message[0] = 4 << 3 | 3;
    message[40..].copy_from_slice(&stamp.to_be_bytes());
    message
}

/// Reads the answer to the question with a stamp, which was asked and answered at these instants of this machine's clock, nanoseconds
/// since 1970.
///
/// # Errors
/// [`AnswerError`].
pub fn parse(
    message: &[u8],
    stamp: u64,
    asked: i64,
    answered: i64,
) -> Result<HostReading, AnswerError> {
    let message: &[u8; LENGTH] = message.first_chunk().ok_or(AnswerError::Malformed)?;
    let word = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|more| message[at + more]));
    let time = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
    let (leap, version, mode) = (message[0] >> 6, message[0] >> 3 & 7, message[0] & 7);
    if mode != 4 || !(3..=4).contains(&version) {
        return Err(AnswerError::Malformed);
    }
    if time(24) != stamp {
        return Err(AnswerError::Unasked);
    }
    let stratum = message[1];
    if stratum == 0 && leap != 3 {
        let code = String::from_utf8_lossy(&message[12..16]);
        let code = code.chars().filter(char::is_ascii_alphanumeric).collect();
        return Err(AnswerError::Refused(code));
    }
    // Differences of NTP's instants are right across the end of an era (RFC 5905, section 6).
    let (asked, answered) = (to_ntp(asked), to_ntp(answered));
    let there = nanos(time(32).wrapping_sub(asked) as i64);
    let back = nanos(time(40).wrapping_sub(answered) as i64);
    let way = nanos(answered.wrapping_sub(asked) as i64)
        .saturating_sub(nanos(time(40).wrapping_sub(time(32)) as i64));
    let own = stratum > 1 && word(12) == LOCAL;
    Ok(HostReading {
        synchronised: leap != 3 && (1..16).contains(&stratum) && !own,
        stratum,
        offset_ns: -(there / 2 + back / 2),
        error_ns: way.unsigned_abs() / 2 + 1,
        distance_ns: short(word(4)) / 2 + short(word(8)),
    })
}

/// An instant, nanoseconds since 1970, as NTP has it.
fn to_ntp(nanos: i64) -> u64 {
    const SECOND: i64 = 1_000_000_000;
    let seconds = (nanos.div_euclid(SECOND) as u64).wrapping_add(EPOCH);
    let fraction = (nanos.rem_euclid(SECOND) as u64) << 32;
    (seconds << 32) | (fraction / SECOND as u64)
}

/// A difference of NTP's instants.
fn nanos(difference: i64) -> i64 {
    ((i128::from(difference) * 1_000_000_000) >> 32) as i64
}

/// A short time of NTP, rounded up.
fn short(time: u32) -> u64 {
    (u64::from(time) * 1_000_000_000).div_ceil(1 << 16)
}

/// Asks a host.
///
/// # Errors
/// [`HostError`].
pub fn read(address: SocketAddr) -> Result<HostReading, HostError> {
    let silent = |source| HostError::Silent { address, source };
    let asker = Asker::udp(address).map_err(silent)?;
    let mut best: Option<HostReading> = None;
    for _ in 0..TRIES {
        let asked = realtime();
        // An answer to somebody else's question, or a forged one, has another.
        let stamp = stamp(asked);
        asker.send(&request(stamp)).map_err(silent)?;
        let answer = asker.receive(|message| match parse(message, stamp, asked, realtime()) {
            Err(AnswerError::Unasked) => None,
            answer => Some(answer),
        });
        let reading = answer
            .map_err(silent)?
            .map_err(|source| HostError::Answer { address, source })?;
        if best.is_none_or(|best| reading.error_ns < best.error_ns) {
            best = Some(reading);
        }
    }
    best.ok_or_else(|| silent(io::ErrorKind::TimedOut.into()))
}

/// What nobody guesses: where a value of this call lies, and when it is made.
fn stamp(now: i64) -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(now)
}

fn realtime() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

impl fmt::Display for HostReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.synchronised {
            true => write!(f, "synchronised, stratum {}", self.stratum),
            false => f.write_str("not synchronised"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of a host that is so much ahead, after 1 ms on the way there and back each.
    fn answer(ahead: i64, asked: i64) -> ([u8; LENGTH], i64) {
        const WAY: i64 = 1_000_000;
        let mut message = request(0);
        message[0] = 4 << 3 | 4;
        message[1] = 2;
        // A quarter of a second, and an eighth.
        message[4..8].copy_from_slice(&0x4000u32.to_be_bytes());
        message[8..12].copy_from_slice(&0x2000u32.to_be_bytes());
        message[24..32].copy_from_slice(&7u64.to_be_bytes());
        let there = to_ntp(asked + WAY + ahead);
        message[32..40].copy_from_slice(&there.to_be_bytes());
        let back = to_ntp(asked + WAY + 500_000 + ahead);
        message[40..48].copy_from_slice(&back.to_be_bytes());
        (message, asked + 2 * WAY + 500_000)
    }

    #[test]
    fn an_answer_says_how_far_the_clocks_are_apart_and_how_wrong_that_may_be() {
        // In this era, and across its end in 2036.
        for asked in [1_790_000_000_000_000_000, 2_085_978_495_999_500_000] {
            for ahead in [0, 40_000_000, -37_000_000_000] {
                let (message, answered) = answer(ahead, asked);
                let reading = parse(&message, 7, asked, answered).expect("an answer");
                assert!(reading.synchronised);
                assert!(
                    (reading.offset_ns + ahead).abs() < 10,
                    "{ahead}: {reading:?}"
                );
                assert!(reading.error_ns.abs_diff(1_000_000) < 10, "{reading:?}");
                assert_eq!(reading.distance_ns, 250_000_000);
            }
        }
    }

    #[test]
    fn a_host_that_follows_nothing_says_so_and_what_is_no_answer_is_refused() {
        let (good, answered) = answer(0, 0);
        let with = |change: &dyn Fn(&mut [u8; LENGTH])| {
            let mut message = good;
            change(&mut message);
            parse(&message, 7, 0, answered)
        };
        assert!(!with(&|m| m[0] |= 3 << 6).expect("an answer").synchronised);
        assert!(!with(&|m| m[1] = 16).expect("an answer").synchronised);
        let own = with(&|m| m[12..16].copy_from_slice(&[127, 127, 1, 1]));
        assert!(!own.expect("an answer").synchronised);
        assert_eq!(with(&|m| m[0] = 4 << 3 | 3), Err(AnswerError::Malformed));
        assert_eq!(with(&|m| m[0] = 1 << 3 | 4), Err(AnswerError::Malformed));
        assert_eq!(with(&|m| m[24] = 1), Err(AnswerError::Unasked));
        let refused = with(&|m| {
            m[1] = 0;
            m[12..16].copy_from_slice(b"DE\x1bN");
        });
        assert_eq!(refused, Err(AnswerError::Refused("DEN".into())));
        assert_eq!(parse(&good[..47], 7, 0, 1), Err(AnswerError::Malformed));
    }
}
