//! Management messages: IEEE 1588-2019, clause 15, and the identifiers of linuxptp from 0xC000 on.
//!
//! ```text
//!  0 profile | 13      20 source: clock, port       44 hops 0, 0
//!  1 version 2         30 sequence                  46 action
//!  2 length            32 control 4                 48 TLV: type 1, length
//!  4 domain            33 interval 0x7f             52 identifier
//!  5 zeros             34 target: clock, port       54 data
//! ```

/// Octets before the data.
pub const HEAD: usize = 54;

const MANAGEMENT: u8 = 0x0d;
const GET: u8 = 0;
const RESPONSE: u8 = 2;
const TLV_MANAGEMENT: u16 = 1;
const TLV_ERROR: u16 = 2;

/// What can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// `DEFAULT_DATA_SET`.
    DefaultDataSet,
    /// `CURRENT_DATA_SET`.
    CurrentDataSet,
    /// `TIME_PROPERTIES_DATA_SET`.
    TimeProperties,
    /// `PORT_DATA_SET`, of each port.
    PortDataSet,
    /// `TIME_STATUS_NP` of linuxptp.
    TimeStatus,
    /// `PORT_PROPERTIES_NP` of linuxptp, of each port.
    PortProperties,
}

impl Id {
    const ALL: [(Self, u16); 6] = [
        (Self::DefaultDataSet, 0x2000),
        (Self::CurrentDataSet, 0x2001),
        (Self::TimeProperties, 0x2003),
        (Self::PortDataSet, 0x2004),
        (Self::TimeStatus, 0xc000),
        (Self::PortProperties, 0xc004),
    ];

    fn number(self) -> u16 {
        let found = Self::ALL.iter().find(|(id, _)| *id == self);
        found.map_or(0, |(_, number)| *number)
    }

    fn of(number: u16) -> Option<Self> {
        let found = Self::ALL.iter().find(|(_, known)| *known == number);
        found.map(|(id, _)| *id)
    }
}

/// Why a message is not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagementError {
    /// Shorter than what it should be.
    #[error("{found} octets where {wanted} belong")]
    Length {
        /// Octets.
        found: usize,
        /// Octets that it must have.
        wanted: usize,
    },
    /// No response of PTP version 2.
    #[error("no response to a management message")]
    Kind,
    /// An identifier that was not asked for.
    #[error("the identifier {0:#06x}, which was not asked for")]
    Id(u16),
    /// An error status (IEEE 1588-2019, table 109).
    #[error("error status {0:#06x}")]
    Status(u16),
    /// A value that does not exist.
    #[error("{field} {value}, which does not exist")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: u8,
    },
}

/// A question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `majorSdoId`: 0 of IEEE 1588, 1 of IEEE 802.1AS.
    pub profile: u8,
    /// The domain.
    pub domain: u8,
    /// Its number.
    pub sequence: u16,
    /// What for.
    pub id: Id,
}

impl Request {
    /// Its octets.
    pub fn emit(&self) -> [u8; HEAD] {
        let mut message = [0; HEAD];
        message[0] = (self.profile << 4) | MANAGEMENT;
        message[1] = 2;
        message[2..4].copy_from_slice(&(HEAD as u16).to_be_bytes());
        message[4] = self.domain;
        // From no clock in particular: any but the one that is asked.
        message[30..32].copy_from_slice(&self.sequence.to_be_bytes());
        message[32] = 4;
        message[33] = 0x7f;
        message[34..44].fill(0xff);
        message[46] = GET;
        message[48..50].copy_from_slice(&TLV_MANAGEMENT.to_be_bytes());
        message[50..52].copy_from_slice(&2u16.to_be_bytes());
        message[52..54].copy_from_slice(&self.id.number().to_be_bytes());
        message
    }
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer<'a> {
    /// The number of its question.
    pub sequence: u16,
    /// What was asked for.
    pub id: Id,
    /// The data, or why there are none.
    pub data: Result<&'a [u8], ManagementError>,
}

impl<'a> Answer<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// [`ManagementError`]: it is no answer.
    pub fn parse(message: &'a [u8]) -> Result<Self, ManagementError> {
        let head = at_least::<HEAD>(message)?;
        let version = head[1] & 0x0f;
        if head[0] & 0x0f != MANAGEMENT || version != 2 || head[46] & 0x0f != RESPONSE {
            return Err(ManagementError::Kind);
        }
        // What lies behind the stated length is padding or nothing of ours.
        let length = usize::from(u16_at(head, 2));
        let message = message.get(..length).ok_or(ManagementError::Length {
            found: message.len(),
            wanted: length,
        })?;
        at_least::<HEAD>(message)?;
        let end = 52 + usize::from(u16_at(head, 50));
        let value = message.get(52..end).ok_or(ManagementError::Length {
            found: message.len(),
            wanted: end,
        })?;
        let known = |number| Id::of(number).ok_or(ManagementError::Id(number));
        let first = u16_at(at_least::<2>(value)?, 0);
        let (id, data) = match u16_at(head, 48) {
            TLV_MANAGEMENT => (known(first)?, Ok(&value[2..])),
            TLV_ERROR => {
                let id = u16_at(at_least::<4>(value)?, 2);
                (known(id)?, Err(ManagementError::Status(first)))
            }
            _ => return Err(ManagementError::Kind),
        };
        Ok(Self {
            sequence: u16_at(head, 30),
            id,
            data,
        })
    }
}

/// `DEFAULT_DATA_SET` (clause 15.5.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultDataSet {
    /// Ports of the clock.
    pub ports: u16,
    /// `clockClass`: 6 traceable, 7 was a moment ago, 248 nobody said.
    pub class: u8,
    /// `clockIdentity`.
    pub identity: [u8; 8],
    /// The domain.
    pub domain: u8,
}

impl DefaultDataSet {
    /// Reads the data of an answer.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub fn parse(data: &[u8]) -> Result<Self, ManagementError> {
        let data = at_least::<20>(data)?;
        Ok(Self {
            ports: u16_at(data, 2),
            class: data[5],
            identity: octets(data, 10),
            domain: data[18],
        })
    }
}

/// `CURRENT_DATA_SET` (clause 15.5.3.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CurrentDataSet {
    /// Hops to the grandmaster.
    pub steps: u16,
    /// This clock minus the grandmaster's, nanoseconds.
    pub offset_ns: i64,
    /// Mean path delay, nanoseconds.
    pub mean_path_delay_ns: i64,
}

impl CurrentDataSet {
    /// Reads the data of an answer.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub fn parse(data: &[u8]) -> Result<Self, ManagementError> {
        let data = at_least::<18>(data)?;
        Ok(Self {
            steps: u16_at(data, 0),
            offset_ns: interval(data, 2),
            mean_path_delay_ns: interval(data, 10),
        })
    }
}

/// `TIME_PROPERTIES_DATA_SET` (clause 15.5.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeProperties {
    /// TAI minus UTC, seconds.
    pub utc_offset_s: i16,
    /// Whether that is known to be right.
    pub utc_offset_valid: bool,
    /// The domain's time is TAI; otherwise it is whatever the grandmaster has.
    pub ptp_timescale: bool,
    /// The time comes from a primary reference.
    pub traceable: bool,
}

impl TimeProperties {
    /// Reads the data of an answer.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub fn parse(data: &[u8]) -> Result<Self, ManagementError> {
        let data = at_least::<4>(data)?;
        let flag = |bit: u8| data[2] & (1 << bit) != 0;
        Ok(Self {
            utc_offset_s: u16_at(data, 0) as i16,
            utc_offset_valid: flag(2),
            ptp_timescale: flag(3),
            traceable: flag(4),
        })
    }
}

/// What a port does (IEEE 1588-2019, table 20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It begins.
    Initializing,
    /// Something is wrong with it, its link for instance.
    Faulty,
    /// It is switched off.
    Disabled,
    /// It waits to hear a master.
    Listening,
    /// It is about to lead.
    PreMaster,
    /// It leads.
    Master,
    /// It stands back for another port.
    Passive,
    /// It has found a master and measures.
    Uncalibrated,
    /// It follows.
    Slave,
}

impl PortState {
    const ALL: [Self; 9] = [
        Self::Initializing,
        Self::Faulty,
        Self::Disabled,
        Self::Listening,
        Self::PreMaster,
        Self::Master,
        Self::Passive,
        Self::Uncalibrated,
        Self::Slave,
    ];

    fn of(value: u8) -> Result<Self, ManagementError> {
        let found = usize::from(value).checked_sub(1);
        let state = found.and_then(|at| Self::ALL.get(at).copied());
        state.ok_or(ManagementError::Value {
            field: "port state",
            value,
        })
    }
}

/// `PORT_DATA_SET` (clause 15.5.3.7.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortDataSet {
    /// The port's number, from 1.
    pub number: u16,
    /// What it does.
    pub state: PortState,
    /// Mean path delay to its neighbour, nanoseconds.
    pub peer_delay_ns: i64,
}

impl PortDataSet {
    /// Reads the data of an answer.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub fn parse(data: &[u8]) -> Result<Self, ManagementError> {
        let data = at_least::<26>(data)?;
        Ok(Self {
            number: u16_at(data, 8),
            state: PortState::of(data[10])?,
            peer_delay_ns: interval(data, 12),
        })
    }
}

/// `TIME_STATUS_NP` of linuxptp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeStatus {
    /// The clock that it keeps minus the grandmaster's, as last measured, nanoseconds.
    pub offset_ns: i64,
    /// When that was, by the clock that it keeps, nanoseconds.
    pub at_ns: i64,
    /// There is a grandmaster, and it is not this clock.
    pub grandmaster_present: bool,
    /// The grandmaster's `clockIdentity`.
    pub grandmaster: [u8; 8],
}

impl TimeStatus {
    /// Reads the data of an answer.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub fn parse(data: &[u8]) -> Result<Self, ManagementError> {
        let data = at_least::<50>(data)?;
        Ok(Self {
            offset_ns: i64::from_be_bytes(octets(data, 0)),
            at_ns: i64::from_be_bytes(octets(data, 8)),
            grandmaster_present: data[38..42] != [0; 4],
            grandmaster: octets(data, 42),
        })
    }
}

/// Who takes the time stamps of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeStamping {
    /// The kernel: the clock that is kept is the kernel's.
    Software,
    /// The device: the clock that is kept is the device's.
    Hardware,
}

/// `PORT_PROPERTIES_NP` of linuxptp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortProperties {
    /// The port's number, from 1.
    pub number: u16,
    /// Who takes its time stamps.
    pub stamping: TimeStamping,
    /// Its interface, in characters that a terminal does not act upon.
    pub interface: String,
}

impl PortProperties {
    /// Reads the data of an answer.
    ///
    /// # Errors
    /// [`ManagementError`].
    pub fn parse(data: &[u8]) -> Result<Self, ManagementError> {
        let head = at_least::<13>(data)?;
        let end = 13 + usize::from(head[12]);
        let interface = data.get(13..end).ok_or(ManagementError::Length {
            found: data.len(),
            wanted: end,
        })?;
        Ok(Self {
            number: u16_at(head, 8),
            stamping: match head[11] {
                0 => TimeStamping::Software,
                1..=4 => TimeStamping::Hardware,
                value => {
                    return Err(ManagementError::Value {
                        field: "time stamping",
                        value,
                    });
                }
            },
            interface: interface.escape_ascii().to_string(),
        })
    }
}

/// The first octets, as many as there must be.
fn at_least<const N: usize>(octets: &[u8]) -> Result<&[u8; N], ManagementError> {
    octets.first_chunk().ok_or(ManagementError::Length {
        found: octets.len(),
        wanted: N,
    })
}

fn octets<const N: usize>(data: &[u8], at: usize) -> [u8; N] {
    let mut octets = [0; N];
    octets.copy_from_slice(&data[at..at + N]);
    octets
}

fn u16_at(data: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(octets(data, at))
}

/// A `TimeInterval`: nanoseconds in units of 2^-16, to the nearest.
fn interval(data: &[u8], at: usize) -> i64 {
    let scaled = i64::from_be_bytes(octets(data, at));
    (scaled >> 16) + ((scaled >> 15) & 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A response with this TLV.
    fn response(sequence: u16, tlv: u16, value: &[u8]) -> Vec<u8> {
        let request = Request {
            profile: 0,
            domain: 0,
            sequence,
            id: Id::TimeStatus,
        };
        let mut message = request.emit()[..48].to_vec();
        message[46] = RESPONSE;
        message.extend(tlv.to_be_bytes());
        message.extend((value.len() as u16).to_be_bytes());
        message.extend(value);
        let length = message.len() as u16;
        message[2..4].copy_from_slice(&length.to_be_bytes());
        message
    }

    fn of(id: Id, data: &[u8]) -> Vec<u8> {
        let value: Vec<u8> = id
            .number()
            .to_be_bytes()
            .iter()
            .chain(data)
            .copied()
            .collect();
        response(7, TLV_MANAGEMENT, &value)
    }

    #[test]
    fn a_request_is_a_get_that_stays_here() {
        let request = Request {
            profile: 1,
            domain: 3,
            sequence: 0x0102,
            id: Id::TimeStatus,
        };
        let mut expected = vec![
            0x1d, 2, 0, 54, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        ];
        expected.extend([0; 10]);
        expected.extend([1, 2, 4, 0x7f]);
        expected.extend([0xff; 10]);
        expected.extend([0, 0, 0, 0, 0, 1, 0, 2, 0xc0, 0]);
        assert_eq!(request.emit().to_vec(), expected);
    }

    #[test]
    fn data_sets_are_read_field_by_field() {
        let message = of(Id::TimeStatus, &{
            let mut data = [0u8; 50];
            data[..8].copy_from_slice(&(-42i64).to_be_bytes());
            data[8..16].copy_from_slice(&9i64.to_be_bytes());
            data[41] = 1;
            data[42..50].copy_from_slice(b"clockid8");
            data
        });
        let answer = Answer::parse(&message).expect("an answer");
        assert_eq!((answer.sequence, answer.id), (7, Id::TimeStatus));
        assert_eq!(
            TimeStatus::parse(answer.data.expect("data")),
            Ok(TimeStatus {
                offset_ns: -42,
                at_ns: 9,
                grandmaster_present: true,
                grandmaster: *b"clockid8",
            })
        );
        let mut data = [0u8; 18];
        data[1] = 2;
        data[2..10].copy_from_slice(&((-5i64 << 16) + 0x8000).to_be_bytes());
        data[10..18].copy_from_slice(&(700i64 << 16).to_be_bytes());
        assert_eq!(
            CurrentDataSet::parse(&data),
            Ok(CurrentDataSet {
                steps: 2,
                offset_ns: -4,
                mean_path_delay_ns: 700,
            })
        );
        assert_eq!(
            TimeProperties::parse(&[0, 37, 0b1_1100, 0x20]),
            Ok(TimeProperties {
                utc_offset_s: 37,
                utc_offset_valid: true,
                ptp_timescale: true,
                traceable: true,
            })
        );
        let mut data = [0u8; 20];
        data[3] = 2;
        data[5] = 248;
        data[10..18].copy_from_slice(b"clockid8");
        data[18] = 24;
        assert_eq!(
            DefaultDataSet::parse(&data),
            Ok(DefaultDataSet {
                ports: 2,
                class: 248,
                identity: *b"clockid8",
                domain: 24,
            })
        );
        let mut data = [0u8; 26];
        data[9] = 1;
        data[10] = 9;
        data[12..20].copy_from_slice(&(300i64 << 16).to_be_bytes());
        assert_eq!(
            PortDataSet::parse(&data),
            Ok(PortDataSet {
                number: 1,
                state: PortState::Slave,
                peer_delay_ns: 300,
            })
        );
        let mut data = vec![0u8; 13];
        data[9] = 1;
        data[11] = 1;
        data[12] = 4;
        data.extend(b"e\x1bh0 padding");
        assert_eq!(
            PortProperties::parse(&data),
            Ok(PortProperties {
                number: 1,
                stamping: TimeStamping::Hardware,
                interface: "e\\x1bh0".into(),
            })
        );
    }

    #[test]
    fn what_is_no_answer_is_told() {
        let good = of(Id::CurrentDataSet, &[0; 18]);
        for (at, value) in [(0, 0x0b), (1, 1), (46, GET), (49, 3)] {
            let mut wrong = good.clone();
            wrong[at] = value;
            assert_eq!(Answer::parse(&wrong), Err(ManagementError::Kind), "{at}");
        }
        for length in [0, 53, good.len() as u16 + 1, u16::MAX] {
            let mut wrong = good.clone();
            wrong[2..4].copy_from_slice(&length.to_be_bytes());
            let parsed = Answer::parse(&wrong);
            assert!(
                matches!(parsed, Err(ManagementError::Length { .. })),
                "{length}"
            );
        }
        let mut wrong = good.clone();
        wrong[52] = 0x77;
        assert_eq!(Answer::parse(&wrong), Err(ManagementError::Id(0x7701)));
        let refused = response(7, TLV_ERROR, &[0, 2, 0xc0, 4, 0, 0, 0, 0]);
        let answer = Answer::parse(&refused).expect("an answer");
        assert_eq!(answer.id, Id::PortProperties);
        assert_eq!(answer.data, Err(ManagementError::Status(2)));
        assert!(PortDataSet::parse(&[0; 26]).is_err(), "there is no state 0");
    }

    proptest! {
        #[test]
        fn no_message_makes_reading_fail(
            mut bytes in prop::collection::vec(any::<u8>(), 0..160),
            id in 0usize..6,
            head in any::<bool>(),
        ) {
            if head && bytes.len() >= HEAD {
                let good = of(Id::ALL[id].0, &bytes[HEAD..]);
                bytes.copy_from_slice(&good);
            }
            if let Ok(Answer { data: Ok(data), .. }) = Answer::parse(&bytes) {
                let _ = DefaultDataSet::parse(data);
                let _ = CurrentDataSet::parse(data);
                let _ = TimeProperties::parse(data);
                let _ = PortDataSet::parse(data);
                let _ = TimeStatus::parse(data);
                let _ = PortProperties::parse(data);
            }
        }

        #[test]
        fn intervals_are_rounded_to_the_nearest_nanosecond(scaled in any::<i64>()) {
            let read = interval(&scaled.to_be_bytes(), 0);
            let doubled = i128::from(scaled) - (i128::from(read) << 16);
            prop_assert!(doubled.abs() <= 1 << 15);
        }
    }
}
