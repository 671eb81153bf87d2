//! Send times and sequence numbers that packets carry.
//!
//! Each format has its reader here, which answers `None` where bytes are missing or wrong. What a flow carries is
//! declared ([`Stamp`]) or, for AVTP, RTP and Takt's header, recognised.

use takt_wire::channel::{ChannelError, DatagramHeader, Protection, Record};
use takt_wire::ethernet::EtherType;
use takt_wire::trailer::Trailer;

use crate::key::{FlowKey, Kind};

/// AVTP, IEEE 1722-2016.
pub const AVTP: EtherType = EtherType(0x22f0);
/// PROFINET real time, in front of which the RTC-Testbench has a frame identifier.
const PROFINET: EtherType = EtherType(0x8892);
/// `tools/isochron`, over Ethernet.
const ISOCHRON: EtherType = EtherType(0xdead);

/// What the packets of a flow carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamp {
    /// To be recognised.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// RTP (RFC 3550): a sequence number of 16 bits and the media clock; instants once RTCP sender reports come by.
    Rtp,
    /// AVTP streams (IEEE 1722-2016, clause 5.4): a sequence number of 8 bits and the presentation time.
    Avtp,
    /// isochron: scheduled transmission time and a sequence number of 32 bits.
    Isochron,
    /// RTC-Testbench since version 4: frame counter of 32 bits and transmission time.
    RtcTestbench,
    /// The timestamp of IEEE 1588-2019, clause 5.3.3 (48 bits of seconds, 32 of nanoseconds), at this offset of the
    /// payload.
    Ptp {
        /// In bytes.
        offset: u16,
    },
    /// The trailer that `takt stamp` puts behind IP packets: a number of 32 bits and the time.
    Trailer,
    /// Takt's datagram header and records.
    Takt,
}

/// What was read from a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// A sequence number and how many bits it has.
    pub sequence: Option<(u64, u8)>,
    /// When the packet was sent, TAI nanoseconds.
    pub sent_ns: Option<i64>,
}

fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// The fixed header of RTP (RFC 3550, section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rtp {
    /// 0 to 127.
    pub payload_type: u8,
    /// The packet's number.
    pub sequence: u16,
    /// The media clock.
    pub timestamp: u32,
    /// Whose packets.
    pub ssrc: u32,
    /// Payload type 13 or 19: no sound was sent before it.
    pub comfort_noise: bool,
}

impl Rtp {
    /// Reads the header if it may be one: version 2, no RTCP packet type, and room for what it announces.
    #[inline]
    pub fn read(payload: &[u8]) -> Option<Self> {
        let (header, _) = payload.split_first_chunk::<12>()?;
        if header[0] >> 6 != 2 || (192..=223).contains(&header[1]) {
            return None;
        }
        let mut length = 12 + usize::from(header[0] & 15) * 4;
        if header[0] & 0x10 != 0 {
            length += 4 + usize::from(be16(payload, length + 2)?) * 4;
        }
        let ssrc = be32(header, 8)?;
        if length > payload.len() || ssrc == 0 {
            return None;
        }
        let payload_type = header[1] & 0x7f;
        Some(Self {
            payload_type,
            sequence: be16(header, 2)?,
            timestamp: be32(header, 4)?,
            ssrc,
            comfort_noise: matches!(payload_type, 13 | 19),
        })
    }

    /// The rate of the media clock, in Hz, of the static payload types (RFC 3551, section 6).
    pub fn clock_rate(payload_type: u8) -> Option<u32> {
        Some(match payload_type {
            0 | 3..=5 | 7..=9 | 12 | 13 | 15 | 18 | 19 => 8_000,
            6 => 16_000,
            10 | 11 => 44_100,
            14 | 25 | 26 | 28 | 31..=34 => 90_000,
            16 => 11_025,
            17 => 22_050,
            _ => return None,
        })
    }
}

/// Whether a datagram is none of RTP's and may come beside RTP by the same ports (RFC 7983): STUN, ZRTP, DTLS, TURN, RTCP, or nothing at
/// all, which keeps a way open.
pub fn is_beside_rtp(payload: &[u8]) -> bool {
    match payload {
        [] | [0..=3 | 16..=79, ..] => true,
        [128..=191, second, ..] => (192..=223).contains(second),
        _ => false,
    }
}

/// What an RTCP sender report says (RFC 3550, section 6.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SenderReport {
    /// Whose.
    pub ssrc: u32,
    /// Nanoseconds since 1970, UTC.
    pub utc_ns: i64,
    /// The same instant by the media clock.
    pub timestamp: u32,
}

impl SenderReport {
    /// Reads the first packet of a compound; `None` if it is no sender report.
    pub fn read(payload: &[u8]) -> Option<Self> {
        /// From 1900, where NTP begins, to 1970.
        const NTP_TO_UNIX: i64 = 2_208_988_800;
        if payload.first()? >> 6 != 2 || *payload.get(1)? != 200 || be16(payload, 2)? < 6 {
            return None;
        }
        let seconds = i64::from(be32(payload, 8)?) - NTP_TO_UNIX;
        let fraction = u64::from(be32(payload, 12)?);
        // Some senders count from their start; such a time says nothing.
        let utc_ns = (seconds > 0)
            .then(|| seconds * 1_000_000_000 + ((fraction * 1_000_000_000) >> 32) as i64)?;
        Some(Self {
            ssrc: be32(payload, 4)?,
            utc_ns,
            timestamp: be32(payload, 16)?,
        })
    }
}

/// Whether a subtype of AVTP has the common stream header (IEEE 1722-2016, table 6 and clause 5.4).
fn is_stream_subtype(subtype: u8) -> bool {
    // IEC 61883, MMA, AAF, CVF, TSCF, SVF, RVF, vendor-specific and experimental streams.
    matches!(subtype, 0x00..=0x03 | 0x05 | 0x07 | 0x08 | 0x6f | 0x7f)
}

/// AVTP: the presentation time, low 32 bits of gPTP nanoseconds, less what the stream adds to the send time.
fn avtp(payload: &[u8], received_ns: i64, max_transit_ns: i64) -> Option<Marks> {
    let (header, _) = payload.split_first_chunk::<16>()?;
    // Bit 7 of the second byte: stream id valid; bits 6 to 4: version, 0.
    if !is_stream_subtype(header[0]) || header[1] & 0xf0 != 0x80 {
        return None;
    }
    let presentation = be32(header, 12)?;
    // The nearest instant with these low bits: within 2.1 s of the reception.
    let ahead = presentation.wrapping_sub(received_ns as u32) as i32;
    let sent = received_ns
        .saturating_add(i64::from(ahead))
        .saturating_sub(max_transit_ns);
    Some(Marks {
        sequence: Some((u64::from(header[2]), 8)),
        // Bit 0: timestamp valid.
        sent_ns: (header[1] & 1 != 0).then_some(sent),
    })
}

fn isochron(payload: &[u8]) -> Option<Marks> {
    Some(Marks {
        sequence: Some((u64::from(be32(payload, 16)?), 32)),
        sent_ns: Some(be64(payload, 0)? as i64),
    })
}

fn rtc_testbench(ether_type: Option<EtherType>, payload: &[u8]) -> Option<Marks> {
    let at = match ether_type {
        Some(PROFINET) => match be16(payload, 0)? {
            // Secure frames have eight bytes more in front of it.
            0x0101 | 0x0201 | 0x8001 => 10,
            _ => 2,
        },
        _ => 0,
    };
    Some(Marks {
        sequence: Some((u64::from(be32(payload, at)?), 32)),
        sent_ns: Some(be64(payload, at + 8)? as i64),
    })
}

fn ptp(payload: &[u8], offset: u16) -> Option<Marks> {
    let bytes: [u8; 10] = *payload.get(usize::from(offset)..)?.first_chunk()?;
    let seconds = be64(
        &[
            0, 0, bytes[0], bytes[1], bytes[2], bytes[3], bytes[4], bytes[5],
        ],
        0,
    )?;
    let nanos = i64::from(be32(&bytes, 6)?);
    if nanos >= 1_000_000_000 {
        return None;
    }
    let sent = i64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?;
    Some(Marks {
        sequence: None,
        sent_ns: Some(sent.checked_add(nanos)?),
    })
}

/// The header of a Takt datagram whose records can be read, all of them up to its end or its padding.
pub fn takt(payload: &[u8]) -> Option<(DatagramHeader, &[u8])> {
    let (header, body) = DatagramHeader::parse(payload).ok()?;
    (header.protection != Protection::Encrypt).then_some((header, body.records))
}

/// The records of a Takt datagram.
pub fn takt_records<'a>(
    header: &DatagramHeader,
    records: &'a [u8],
) -> impl Iterator<Item = Result<Record<'a>, ChannelError>> + use<'a> {
    header.records(records)
}

/// What a trailer says.
pub fn trailer(behind: &[u8]) -> Option<Marks> {
    let trailer = Trailer::parse(behind)?;
    Some(Marks {
        sequence: Some((trailer.sequence.into(), 32)),
        sent_ns: Some(trailer.sent_ns),
    })
}

fn takt_marks(payload: &[u8]) -> Option<Marks> {
    let (header, _) = takt(payload)?;
    Some(Marks {
        // The nonce: which key in the upper byte.
        sequence: (header.counter != 0).then_some((header.counter, 56)),
        sent_ns: Some(header.send_time_ns),
    })
}

/// Whether bytes are a Takt datagram beyond doubt: every record is sound and they fill it.
fn is_takt(payload: &[u8]) -> bool {
    let Some((header, bytes)) = takt(payload) else {
        return false;
    };
    let mut length = 0_usize;
    for record in takt_records(&header, bytes) {
        match record {
            Ok(record) => {
                length =
                    length.next_multiple_of(8) + record.header.header_len() + record.payload.len();
            }
            Err(_) => return false,
        }
    }
    // Datagrams of a train are padded to one length.
    bytes
        .get(length..)
        .is_some_and(|padding| padding.iter().all(|byte| *byte == 0))
}

impl Stamp {
    /// What the first packet of a flow shows. RTP takes more than one packet and is not told here.
    pub fn recognise(key: &FlowKey, payload: &[u8]) -> Self {
        match (key.ether_type(), key.protocol()) {
            (Some(AVTP), _) => Self::Avtp,
            (Some(ISOCHRON), _) => Self::Isochron,
            (_, Some(17)) if is_takt(payload) => Self::Takt,
            _ if key.kind() == Kind::Channel => Self::Takt,
            (_, Some(17)) => Self::Auto,
            _ => Self::None,
        }
    }

    /// Reads what a packet carries. RTP is not read here, since it needs the flow's state.
    #[inline]
    pub fn read(
        self,
        key: &FlowKey,
        payload: &[u8],
        received_ns: i64,
        max_transit_ns: i64,
    ) -> Option<Marks> {
        match self {
            // A trailer is behind the payload.
            Self::Auto | Self::None | Self::Rtp | Self::Trailer => None,
            Self::Avtp => avtp(payload, received_ns, max_transit_ns),
            Self::Isochron => isochron(payload),
            Self::RtcTestbench => rtc_testbench(key.ether_type(), payload),
            Self::Ptp { offset } => ptp(payload, offset),
            Self::Takt => takt_marks(payload),
        }
    }

    /// Reads a name as in a specification: `rtp`, `ptp@12`.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "auto" => Self::Auto,
            "none" => Self::None,
            "rtp" => Self::Rtp,
            "avtp" => Self::Avtp,
            "isochron" => Self::Isochron,
            "rtc-testbench" => Self::RtcTestbench,
            "takt" => Self::Takt,
            "trailer" => Self::Trailer,
            name => Self::Ptp {
                offset: name
                    .strip_prefix("ptp@")?
                    .parse()
                    .ok()
                    .filter(|at| *at <= 9000)?,
            },
        })
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto | Self::None => "none",
            Self::Rtp => "rtp",
            Self::Avtp => "avtp",
            Self::Isochron => "isochron",
            Self::RtcTestbench => "rtc-testbench",
            Self::Ptp { .. } => "ptp",
            Self::Takt => "takt",
            Self::Trailer => "trailer",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use takt_wire::ethernet::MacAddress;

    #[test]
    fn the_presentation_time_of_avtp_is_taken_back_by_the_transit_time_and_over_the_wrap() {
        let mut header = [0; 24];
        header[0] = 2;
        header[1] = 0x81;
        header[2] = 7;
        // Sent 100 ns before the low 32 bits wrap, to be presented 2 ms later; received 50 us after it was sent.
        let sent: i64 = (5 << 32) - 100;
        header[12..16].copy_from_slice(&((sent + 2_000_000) as u32).to_be_bytes());
        let marks = avtp(&header, sent + 50_000, 2_000_000).expect("AVTP");
        assert_eq!(marks.sequence, Some((7, 8)));
        assert_eq!(marks.sent_ns, Some(sent));
        header[1] = 0x80;
        assert_eq!(avtp(&header, 0, 0).expect("AVTP").sent_ns, None);
        header[0] = 0xfa;
        assert_eq!(avtp(&header, 0, 0), None);
    }

    #[test]
    fn test_programs_have_their_times_and_numbers_read() {
        let mut payload = Vec::new();
        payload.extend(1_700_000_000_000_000_123_u64.to_be_bytes());
        payload.extend([0; 8]);
        payload.extend(9_u32.to_be_bytes());
        let marks = isochron(&payload).expect("isochron");
        assert_eq!(
            marks,
            Marks {
                sequence: Some((9, 32)),
                sent_ns: Some(1_700_000_000_000_000_123)
            }
        );
        let mut payload = vec![0x80, 0, 0, 0, 0, 5, 0, 0, 0, 6];
        payload.extend(77_u64.to_be_bytes());
        let marks = rtc_testbench(Some(PROFINET), &payload).expect("RTC-Testbench");
        assert_eq!(marks.sequence, Some((5, 32)));
        assert_eq!(marks.sent_ns, Some(77));
        assert_eq!(rtc_testbench(None, &payload[2..]).expect("the same"), marks);
        let payload = [0xee, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3];
        assert_eq!(ptp(&payload, 1).expect("PTP").sent_ns, Some(2_000_000_003));
        assert_eq!(ptp(&payload, 2), None);
    }

    #[test]
    fn a_sender_report_is_told_from_rtp() {
        let mut report = vec![0x80, 200, 0, 6];
        report.extend(7_u32.to_be_bytes());
        report.extend((2_208_988_800_u32 + 10).to_be_bytes());
        report.extend(0x8000_0000_u32.to_be_bytes());
        report.extend(1234_u32.to_be_bytes());
        report.extend([0; 8]);
        assert_eq!(
            SenderReport::read(&report),
            Some(SenderReport {
                ssrc: 7,
                utc_ns: 10_500_000_000,
                timestamp: 1234
            })
        );
        assert_eq!(Rtp::read(&report), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), at in any::<i64>()) {
            let key = FlowKey::stream(MacAddress::ZERO, None, PROFINET);
            for stamp in [
                Stamp::Avtp, Stamp::Isochron, Stamp::RtcTestbench, Stamp::Ptp { offset: 3 }, Stamp::Takt, Stamp::Rtp,
            ] {
                let _ = stamp.read(&key, &bytes, at, 2_000_000);
            }
            let _ = (Rtp::read(&bytes), SenderReport::read(&bytes));
            let mut bytes = bytes;
            if bytes.len() > 2 {
                (bytes[0], bytes[1]) = (2, 0);
            }
            let _ = is_takt(&bytes);
        }
    }
}
