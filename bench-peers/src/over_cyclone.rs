//! Cyclone DDS by its C API: writers and readers of octets that keep all, reliable or best effort, and its defaults otherwise.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{NonNull, null};
use std::time::Duration;

use crate::side::{
    Counter, END, Failure, Measured, PATIENCE, measure_round_trips, send_for, send_in_bursts,
    tell_ready, wait_for,
};
use crate::pace::Steady;
use crate::{Common, Ping, Publish};

const PING: &str = "takt_bench_ping";
const PONG: &str = "takt_bench_pong";

/// `struct peer` of `cyclone/peer.c`.
#[repr(C)]
struct Native([u8; 0]);

type See = unsafe extern "C" fn(*mut c_void, *const u8, usize);

unsafe extern "C" {
    fn cyclone_open(
        result: *mut *mut Native,
        writes: *const c_char,
        reads: *const c_char,
        reliable: bool,
    ) -> c_int;
    fn cyclone_close(peer: *mut Native);
    fn cyclone_readers(peer: *mut Native) -> c_int;
    fn cyclone_writers(peer: *mut Native) -> c_int;
    fn cyclone_write(peer: *mut Native, data: *const u8, length: usize) -> c_int;
    fn cyclone_take(peer: *mut Native, timeout_ns: i64, see: See, with: *mut c_void) -> c_int;
    fn cyclone_told(code: c_int) -> *const c_char;
}

/// A participant with a writer, a reader or both.
struct Peer(NonNull<Native>);

fn check(code: c_int) -> Result<u32, Failure> {
    u32::try_from(code).map_err(|_| {
        // SAFETY: it answers any number with a constant text.
        let told = unsafe { CStr::from_ptr(cyclone_told(code)) };
        format!("Cyclone DDS: {}", told.to_string_lossy()).into()
    })
}

impl Peer {
    fn open(writes: Option<&str>, reads: Option<&str>, reliable: bool) -> Result<Self, Failure> {
        let [writes, reads] = [writes, reads].map(|name| name.map(CString::new).transpose());
        let (writes, reads) = (writes?, reads?);
        let text = |name: &Option<CString>| name.as_ref().map_or(null(), |name| name.as_ptr());
        let mut peer = std::ptr::null_mut();
        // SAFETY: texts end with a zero and outlive the call; the place for the result is ours.
        let opened =
            unsafe { cyclone_open(&raw mut peer, text(&writes), text(&reads), reliable) };
        let peer = NonNull::new(peer).map(Self);
        check(opened)?;
        peer.ok_or_else(|| "Cyclone DDS: no memory".into())
    }

    fn readers(&self) -> Result<u32, Failure> {
        // SAFETY: open, here and below.
        check(unsafe { cyclone_readers(self.0.as_ptr()) })
    }

    fn writers(&self) -> Result<u32, Failure> {
        // SAFETY: as above.
        check(unsafe { cyclone_writers(self.0.as_ptr()) })
    }

    fn write(&self, data: &[u8]) -> Result<(), Failure> {
        // SAFETY: as above; the octets are copied by the call.
        check(unsafe { cyclone_write(self.0.as_ptr(), data.as_ptr(), data.len()) }).map(drop)
    }

    /// Shows what waits to `see`, after waiting for it. False: nothing came.
    fn take<F: FnMut(&[u8])>(&self, wait: Duration, mut see: F) -> Result<bool, Failure> {
        unsafe extern "C" fn shown<F: FnMut(&[u8])>(with: *mut c_void, data: *const u8, len: usize) {
            let data = match len {
                0 => &[],
                // SAFETY: the sample's octets, until the call returns.
                _ => unsafe { std::slice::from_raw_parts(data, len) },
            };
            // SAFETY: the closure of the call that this is made in.
            unsafe { (*with.cast::<F>())(data) }
        }
        // SAFETY: as above; `see` outlives the call.
        let taken = unsafe {
            cyclone_take(
                self.0.as_ptr(),
                wait.as_nanos() as i64,
                shown::<F>,
                (&raw mut see).cast(),
            )
        };
        Ok(check(taken)? > 0)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once.
        unsafe { cyclone_close(self.0.as_ptr()) };
    }
}

fn wait_for_reader(peer: &Peer) -> Result<(), Failure> {
    wait_for("reader", || Ok((peer.readers()? > 0).then_some(())))
}

/// Publishes as fast as Cyclone DDS takes samples.
pub fn publish(options: &Publish, reliable: bool) -> Result<(), Failure> {
    let peer = Peer::open(Some(&options.common.topic), None, reliable)?;
    wait_for_reader(&peer)?;
    let payload = vec![0_u8; options.common.payload as usize];
    let sent = match options.rate {
        Some(rate) => {
            let duration = Duration::from_millis(options.duration_ms);
            let pace = Steady { rate, duration };
            pace.run(|_| peer.write(&payload))?;
            pace.count()
        }
        None if options.bursts => send_in_bursts(options.duration_ms, || peer.write(&payload))?,
        None => send_for(options.duration_ms, || peer.write(&payload))?,
    };
    // It may be lost as any other.
    wait_for("end of the reader", || {
        peer.write(&END)?;
        Ok((peer.readers()? == 0).then_some(()))
    })?;
    Measured::sent(sent).tell()
}

/// Counts what arrives.
pub fn subscribe(options: &Common, reliable: bool) -> Result<(), Failure> {
    let peer = Peer::open(None, Some(&options.topic), reliable)?;
    tell_ready()?;
    let (mut counter, mut measured) = (Counter::default(), None);
    while measured.is_none() {
        peer.take(PATIENCE, |sample| {
            if measured.is_none() {
                measured = counter.count(sample);
            }
        })?;
    }
    drop(peer);
    measured.unwrap_or_default().tell()
}

/// Measures round trips, waiting in a wait set.
pub fn ping(options: &Ping, reliable: bool) -> Result<(), Failure> {
    let peer = Peer::open(Some(PING), Some(PONG), reliable)?;
    wait_for_reader(&peer)?;
    wait_for("writer", || Ok((peer.writers()? > 0).then_some(())))?;
    let mut payload = vec![0_u8; options.common.payload as usize];
    // The far side may not know of our reader yet: repeat until it answers.
    wait_for("answer", || {
        peer.write(&payload)?;
        Ok(peer
            .take(Duration::from_millis(100), |_| {})?
            .then_some(()))
    })?;
    while peer.take(Duration::from_millis(20), |_| {})? {}
    let latencies = measure_round_trips(options, |sequence| {
        payload[..8].copy_from_slice(&sequence.to_ne_bytes());
        peer.write(&payload)?;
        let mut answered = false;
        while !answered {
            let came = peer.take(PATIENCE, |answer| {
                answered |= answer.get(..8) == Some(&sequence.to_ne_bytes()[..]);
            })?;
            if !came {
                return Err("no answer".into());
            }
        }
        Ok(())
    })?;
    wait_for("end of the reader", || {
        peer.write(&END)?;
        Ok((peer.readers()? == 0).then_some(()))
    })?;
    Measured::from(latencies).tell()
}

/// Echoes, waiting in a wait set.
pub fn pong(_: &Common, reliable: bool) -> Result<(), Failure> {
    let peer = Peer::open(Some(PONG), Some(PING), reliable)?;
    tell_ready()?;
    let mut ended = false;
    while !ended {
        let mut failed = Ok(());
        peer.take(PATIENCE, |sample| {
            if sample.len() == END.len() {
                ended = true;
            } else if let Err(error) = peer.write(sample) {
                failed = Err(error);
            }
        })?;
        failed?;
    }
    drop(peer);
    Measured::default().tell()
}
