//! `takt_stream_*`.

use std::ffi::{c_char, c_int};
use std::time::Duration;

use takt_client::{
    Acceleration, Error, NotADatapathName, Qos, Reliability, ResourceUse, Session, SlowSinks,
    Stream, TimeSensitivity, TrafficClass,
};

use crate::error::{guard, invalid};
use crate::pointers::{borrow, hand_out, sized, take_back, text, write_text};

/// `takt_qos`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CQos {
    size: usize,
    acceleration: c_int,
    resource_use: c_int,
    time_sensitivity: c_int,
    traffic_class: c_int,
    reliability: c_int,
    slow_sinks: c_int,
    deadline_ns: u64,
    patience_ns: u64,
    datapath: *const c_char,
}

impl CQos {
    pub const USUAL: Self = Self {
        size: size_of::<Self>(),
        acceleration: 0,
        resource_use: 0,
        time_sensitivity: 0,
        traffic_class: 0,
        reliability: 0,
        slow_sinks: 0,
        deadline_ns: 0,
        patience_ns: 0,
        datapath: std::ptr::null(),
    };

    /// # Safety
    /// `datapath` is null or points to a text that ends in NUL.
    pub unsafe fn read(self) -> Result<Qos, Error> {
        let unknown = |field: &str, value: c_int, right: &str| {
            invalid(&format!("`qos->{field}` is {value}: it must be {right}"))
        };
        let class = || {
            u8::try_from(self.traffic_class)
                .ok()
                .and_then(TrafficClass::new)
                .ok_or_else(|| unknown("traffic_class", self.traffic_class, "0 to 7"))
        };
        // SAFETY: the caller's promise.
        let datapath = unsafe { text(self.datapath, "qos->datapath")? };
        let datapath = datapath.filter(|name| !name.is_empty()).map(str::parse);
        let datapath = datapath.transpose();
        Ok(Qos {
            datapath: datapath
                .map_err(|e: NotADatapathName| invalid(&format!("`qos->datapath`: {e}")))?,
            acceleration: match self.acceleration {
                0 => Acceleration::Slow,
                1 => Acceleration::Fast,
                other => return Err(unknown("acceleration", other, "TAKT_SLOW or TAKT_FAST")),
            },
            resource_use: match self.resource_use {
                0 => ResourceUse::Frugal,
                1 => ResourceUse::Unlimited,
                other => {
                    return Err(unknown(
                        "resource_use",
                        other,
                        "TAKT_FRUGAL or TAKT_UNLIMITED",
                    ));
                }
            },
            time_sensitivity: match self.time_sensitivity {
                0 => TimeSensitivity::BestEffort,
                1 => TimeSensitivity::TimeSensitive(class()?),
                other => {
                    let right = "TAKT_BEST_EFFORT or TAKT_TIME_SENSITIVE";
                    return Err(unknown("time_sensitivity", other, right));
                }
            },
            reliability: match self.reliability {
                0 => Reliability::BestEffort,
                1 => self.reliable()?,
                2 => Reliability::Latest,
                other => {
                    let right = "TAKT_SENT_ONCE, TAKT_RELIABLE or TAKT_LATEST";
                    return Err(unknown("reliability", other, right));
                }
            },
        })
    }

    fn reliable(self) -> Result<Reliability, Error> {
        let slow_sinks = match (self.slow_sinks, self.patience_ns) {
            (0, 0) => SlowSinks::default(),
            (0, patience) => SlowSinks::Evict(Duration::from_nanos(patience)),
            (1, _) => SlowSinks::Wait,
            (2, _) => SlowSinks::Drop,
            (other, _) => {
                return Err(invalid(&format!(
                    "`qos->slow_sinks` is {other}: it must be TAKT_EVICT_SLOW, TAKT_WAIT_FOR_SLOW or TAKT_DROP_FOR_SLOW"
                )));
            }
        };
        let deadline = (self.deadline_ns != 0).then_some(Duration::from_nanos(self.deadline_ns));
        let reliability = Reliability::Reliable {
            deadline,
            slow_sinks,
        };
        match reliability.is_possible() {
            true => Ok(reliability),
            false => Err(invalid(&format!(
                "`qos->deadline_ns` is {} and `qos->patience_ns` {}: each must be at most an hour",
                self.deadline_ns, self.patience_ns
            ))),
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_stream_open(
    session: *const Session,
    qos: *const CQos,
    stream: *mut *mut Stream,
) -> c_int {
    // SAFETY: the caller's promises: handles and structures are null or valid.
    guard(|| unsafe {
        let session = borrow(session, "session")?;
        let qos = sized(qos, "qos", CQos::USUAL)?.read()?;
        hand_out(stream, "stream", || session.stream(qos))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_stream_close(stream: *mut Stream) {
    // SAFETY: null or a stream, which the caller gives up.
    unsafe { take_back(stream) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_stream_datapath(
    stream: *const Stream,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: null or a stream; `text` is writable for `size` bytes.
    guard(|| unsafe { write_text(&borrow(stream, "stream")?.datapath(), text, size) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_stream_warning(
    stream: *const Stream,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: as above.
    guard(|| unsafe {
        let warning = borrow(stream, "stream")?.warning().unwrap_or_default();
        write_text(&warning, text, size)
    })
}
