//! `takt_video_*`.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;
use std::time::Duration;

use takt_client::{Error, ErrorCode, Failure, TaiTime};
use takt_messaging::Participant;
use takt_streaming::{
    Client, ClientOptions, Format, Frame, Keep, Pace, Pixels, Server, ServerOptions,
};

use crate::error::{guard, invalid};
use crate::loans::Loans;
use crate::pointers::{borrow, fill, given, hand_out, place, sized, take_back};
use crate::source::wait;
use crate::stream::CQos;
use crate::topic::{self, SubscriberCount, needed};

/// An error of streaming as one of the codes.
fn failed(error: takt_streaming::Error) -> Error {
    match error {
        takt_streaming::Error::Topic(error) => topic::failed(error),
        takt_streaming::Error::Failed(text) => Error::Ended(Failure::new(ErrorCode::Closed, text)),
        error => invalid(&error.to_string()),
    }
}

/// `takt_video_format`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct CFormat {
    pixels: c_int,
    width: u32,
    height: u32,
}

impl CFormat {
    fn read(self) -> Result<Format, Error> {
        let pixels = u32::try_from(self.pixels)
            .ok()
            .and_then(Pixels::from_number);
        let pixels = pixels.ok_or_else(|| {
            let told = format!(
                "`format->pixels` is {}: it must be a TAKT_PIXELS_ number",
                self.pixels
            );
            invalid(&told)
        })?;
        Format::picture(pixels, self.width, self.height).map_err(failed)
    }

    fn of(format: Format) -> Self {
        Self {
            pixels: format.pixels().number().cast_signed(),
            width: format.width(),
            height: format.height(),
        }
    }
}

/// `takt_video_server_options`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ServerHow {
    size: usize,
    qos: *const CQos,
    period_ns: u64,
    spread: c_int,
    slice: u32,
    depth: u32,
}

const USUAL_SERVER: ServerHow = ServerHow {
    size: size_of::<ServerHow>(),
    qos: std::ptr::null(),
    period_ns: 0,
    spread: 0,
    slice: 0,
    depth: 0,
};

/// `takt_video_server`. Borrowed while it sends.
type CServer = RefCell<Server>;

fn busy<T>(_: T) -> Error {
    invalid("the server is sending a frame: `fill` must not call its functions")
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_server_open(
    participant: *const Participant,
    stream: *const c_char,
    format: *const CFormat,
    options: *const ServerHow,
    server: *mut *mut CServer,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let participant = borrow(participant, "participant")?;
        let stream = needed(stream, "stream")?;
        let format = given(format, "format")?.read()?;
        let how = sized(options, "options", USUAL_SERVER)?;
        let options = ServerOptions {
            qos: sized(how.qos, "options->qos", CQos::USUAL)?.read()?,
            pace: if how.spread != 0 {
                Pace::Spread
            } else {
                Pace::Burst
            },
            period: (how.period_ns > 0).then(|| Duration::from_nanos(how.period_ns)),
            slice: how.slice,
            depth: how.depth,
        };
        hand_out(server, "server", || {
            let server = Server::open(participant, stream, format, options);
            Ok(RefCell::new(server.map_err(failed)?))
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_server_close(server: *mut CServer) {
    // SAFETY: null or a server, which the caller gives up.
    unsafe { take_back(server) };
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_server_wait_client(
    server: *const CServer,
    timeout_ns: i64,
) -> c_int {
    guard(|| {
        // SAFETY: null or a server.
        let server = unsafe { borrow(server, "server")? };
        let server = server.try_borrow().map_err(busy)?;
        let clients = server.wait_client(wait(timeout_ns)?).map_err(failed)?;
        Ok(c_int::try_from(clients).unwrap_or(c_int::MAX))
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_server_set_format(
    server: *const CServer,
    format: *const CFormat,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let server = borrow(server, "server")?;
        let format = given(format, "format")?.read()?;
        server.try_borrow_mut().map_err(busy)?.set_format(format);
        Ok(0)
    })
}

/// Tells C which frame it was.
///
/// # Safety
/// `number` is null or writable.
unsafe fn told(sent: u64, number: *mut u64) -> Result<c_int, Error> {
    // SAFETY: the caller's promise.
    if let Some(number) = unsafe { number.as_mut() } {
        *number = sent;
    }
    Ok(0)
}

/// The time that C has given, or now.
fn captured(captured_ns: i64) -> TaiTime {
    match captured_ns {
        0 => takt_streaming::now(),
        nanos => TaiTime::from_nanos(nanos),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_send(
    server: *const CServer,
    frame: *const c_void,
    length: usize,
    captured_ns: i64,
    timeout_ns: i64,
    number: *mut u64,
) -> c_int {
    // SAFETY: null or valid; `frame` is readable for `length` bytes.
    guard(|| unsafe {
        let mut server = borrow(server, "server")?.try_borrow_mut().map_err(busy)?;
        if frame.is_null() {
            return Err(invalid("`frame` is NULL"));
        }
        server.fits(length).map_err(failed)?;
        // SAFETY: of a length that a frame can have, and readable for that by the caller's promise.
        let frame = std::slice::from_raw_parts(frame.cast::<u8>(), length);
        let sent = server.send_captured(frame, captured(captured_ns), wait(timeout_ns)?);
        told(sent.map_err(failed)?, number)
    })
}

/// `takt_video_fill`.
type Fill = unsafe extern "C" fn(*mut c_void, usize, *mut c_void, usize);

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_send_fill(
    server: *const CServer,
    captured_ns: i64,
    timeout_ns: i64,
    fill: Option<Fill>,
    user: *mut c_void,
    number: *mut u64,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let mut server = borrow(server, "server")?.try_borrow_mut().map_err(busy)?;
        let fill = fill.ok_or_else(|| invalid("`fill` is NULL"))?;
        let sent = server.fill(
            captured(captured_ns),
            wait(timeout_ns)?,
            |offset, memory| {
                fill(user, offset, memory.as_mut_ptr().cast(), memory.len());
            },
        );
        told(sent.map_err(failed)?, number)
    })
}

/// `takt_video_client_options`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ClientHow {
    size: usize,
    qos: *const CQos,
    all: c_int,
    holes: c_int,
    frames: u32,
    depth: u32,
    most_bytes: usize,
    memory: usize,
}

const USUAL_CLIENT: ClientHow = ClientHow {
    size: size_of::<ClientHow>(),
    qos: std::ptr::null(),
    all: 0,
    holes: 0,
    frames: 0,
    depth: 0,
    most_bytes: 0,
    memory: 0,
};

/// `takt_video_hole`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Hole {
    begin: usize,
    end: usize,
}

/// `takt_video_client`, with the frames that C holds.
struct CClient {
    client: Client,
    held: RefCell<Loans<(Frame, Vec<Hole>)>>,
}

impl CClient {
    fn name(&self) -> u64 {
        std::ptr::from_ref(self) as usize as u64
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_client_open(
    participant: *const Participant,
    stream: *const c_char,
    options: *const ClientHow,
    client: *mut *mut CClient,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let participant = borrow(participant, "participant")?;
        let stream = needed(stream, "stream")?;
        let how = sized(options, "options", USUAL_CLIENT)?;
        let options = ClientOptions {
            qos: sized(how.qos, "options->qos", CQos::USUAL)?.read()?,
            keep: if how.all != 0 {
                Keep::All
            } else {
                Keep::Latest
            },
            frames: how.frames,
            holes: how.holes != 0,
            most_bytes: how.most_bytes,
            memory: how.memory,
            depth: how.depth,
        };
        hand_out(client, "client", || {
            Ok(CClient {
                client: Client::connect(participant, stream, options).map_err(failed)?,
                held: RefCell::new(Loans::new()),
            })
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_client_close(client: *mut CClient) {
    // SAFETY: null or a client, which the caller gives up.
    unsafe { take_back(client) };
}

/// `takt_video_frame`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CFrame {
    data: *const c_void,
    length: usize,
    format: CFormat,
    period_ns: u32,
    number: u64,
    captured_ns: i64,
    completed_ns: i64,
    holes: *const Hole,
    hole_count: usize,
    /// Key of the loan, and who lends.
    reserved: [u64; 2],
}

impl CFrame {
    fn none() -> Self {
        Self {
            data: std::ptr::null(),
            length: 0,
            format: CFormat::default(),
            period_ns: 0,
            number: 0,
            captured_ns: 0,
            completed_ns: 0,
            holes: std::ptr::null(),
            hole_count: 0,
            reserved: [0; 2],
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_next(
    client: *const CClient,
    timeout_ns: i64,
    frame: *mut CFrame,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let out = place(frame, "frame")?;
        *out = CFrame::none();
        let client = borrow(client, "client")?;
        let frame = match client.client.next(wait(timeout_ns)?) {
            Ok(frame) => frame,
            Err(error) if error.is_end() => return Ok(1),
            Err(error) => return Err(failed(error)),
        };
        let holes: Vec<Hole> = frame
            .holes()
            .iter()
            .map(|hole| Hole {
                begin: hole.start,
                end: hole.end,
            })
            .collect();
        *out = CFrame {
            // Both stay where they are when their owners move.
            data: frame.as_ptr().cast(),
            length: frame.len(),
            format: CFormat::of(frame.format()),
            period_ns: frame.period().map_or(0, |period| period.as_nanos() as u32),
            number: frame.number(),
            captured_ns: frame.captured().as_nanos(),
            completed_ns: frame.completed().as_nanos(),
            holes: if holes.is_empty() {
                std::ptr::null()
            } else {
                holes.as_ptr()
            },
            hole_count: holes.len(),
            reserved: [client.held.borrow_mut().lend((frame, holes)), client.name()],
        };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_frame_release(client: *const CClient, frame: *mut CFrame) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let out = place(frame, "frame")?;
        let client = borrow(client, "client")?;
        let [key, name] = out.reserved;
        if name != client.name() {
            return Err(invalid("the frame is not of this client, or was released"));
        }
        let held = client.held.borrow_mut().take(key);
        drop(held.ok_or_else(|| invalid("the frame was released already"))?);
        *out = CFrame::none();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_client_wake(client: *const CClient) -> c_int {
    guard(|| {
        // SAFETY: null or a client; waking is for any thread.
        unsafe { borrow(client, "client")? }.client.wake();
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_client_fd(client: *const CClient) -> c_int {
    guard(|| {
        // SAFETY: null or a client.
        let client = unsafe { borrow(client, "client")? };
        Ok(client.client.fd().as_raw_fd())
    })
}

/// `takt_video_client_counters`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ClientCount {
    size: usize,
    frames: u64,
    with_holes: u64,
    incomplete: u64,
    lost: u64,
    skipped: u64,
    too_large: u64,
    late: u64,
    other_server: u64,
    slices: SubscriberCount,
    no_memory: u64,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn takt_video_client_read_counters(
    client: *const CClient,
    counters: *mut ClientCount,
) -> c_int {
    // SAFETY: null or valid.
    guard(|| unsafe {
        let now = borrow(client, "client")?.client.counters();
        let now = ClientCount {
            size: size_of::<ClientCount>(),
            frames: now.frames,
            with_holes: now.with_holes,
            incomplete: now.incomplete,
            lost: now.lost,
            skipped: now.skipped,
            too_large: now.too_large,
            late: now.late,
            other_server: now.other_server,
            slices: now.slices.into(),
            no_memory: now.no_memory,
        };
        fill(counters, "counters", now)?;
        Ok(0)
    })
}
