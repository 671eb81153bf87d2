//! The embedded form: finds and loads `libtakt_embedded.so`, and lets the calling threads drive it.

use std::ffi::{CStr, CString, c_void};
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use takt_client::{Error, ErrorCode, Failure, Progress};

use crate::embedded_abi::{
    ERROR, EmbeddedSession, LIBRARY, LIBRARY_VARIABLE, LastError, OPEN, Open, SLEEPS, Sleeps,
};

/// A runtime in this process; stopped when dropped, which the session does last.
struct Runtime {
    state: *mut c_void,
    progress: unsafe extern "C" fn(*mut c_void),
    sleeps: Option<Sleeps>,
    close: unsafe extern "C" fn(*mut c_void),
}

// SAFETY: by contract `progress` may be called from any thread, and `close` when nothing else is.
unsafe impl Send for Runtime {}
// SAFETY: as above.
unsafe impl Sync for Runtime {}

impl Progress for Runtime {
    #[inline]
    fn progress(&self) {
        // SAFETY: not closed before it is dropped.
        unsafe { (self.progress)(self.state) };
    }

    fn sleeps(&self) {
        if let Some(sleeps) = self.sleeps {
            // SAFETY: not closed before it is dropped.
            unsafe { sleeps(self.state) };
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // SAFETY: nobody else has it any more. The library stays loaded: its threads may be in their last
        // instructions.
        unsafe { (self.close)(self.state) };
    }
}

fn cannot(what: &'static str, text: String) -> Error {
    Error::System {
        what,
        source: io::Error::other(text),
    }
}

/// Starts the embedded runtime: the socket of a session with it, and what drives it.
pub fn start() -> Result<(OwnedFd, Arc<dyn Progress>), Error> {
    let library = load()?;
    let open = symbol(library, OPEN)?;
    // SAFETY: the function of this name is of this type, by the contract in `embedded_abi`.
    let open = unsafe { std::mem::transmute::<*mut c_void, Open>(open) };
    let mut session = EmbeddedSession {
        socket: -1,
        state: std::ptr::null_mut(),
        progress: None,
        close: None,
    };
    // SAFETY: by contract: no argument yet, and room for the result.
    let code = unsafe { open(std::ptr::null(), &raw mut session) };
    if code != 0 {
        let text = symbol(library, ERROR).map_or_else(
            |_| format!("libtakt_embedded.so gave the code {code}"),
            |function| {
                // SAFETY: of this type by contract, and its text is valid until the next failure here.
                let text = unsafe {
                    let function = std::mem::transmute::<*mut c_void, LastError>(function);
                    CStr::from_ptr(function())
                };
                text.to_string_lossy().into_owned()
            },
        );
        let code = ErrorCode::from_number(code).unwrap_or(ErrorCode::System);
        return Err(Error::Refused(Failure::new(code, text)));
    }
    let EmbeddedSession {
        socket,
        state,
        progress: Some(progress),
        close: Some(close),
    } = session
    else {
        let text = "the library filled nothing in".into();
        return Err(cannot("start the embedded runtime", text));
    };
    let sleeps = symbol(library, SLEEPS).ok();
    // SAFETY: the function of this name is of this type, by the contract in `embedded_abi`.
    let sleeps = sleeps.map(|at| unsafe { std::mem::transmute::<*mut c_void, Sleeps>(at) });
    let runtime: Arc<dyn Progress> = Arc::new(Runtime {
        state,
        progress,
        sleeps,
        close,
    });
    if socket < 0 {
        return Err(cannot(
            "start the embedded runtime",
            format!("its socket is {socket}"),
        ));
    }
    // SAFETY: ours by contract.
    Ok((unsafe { OwnedFd::from_raw_fd(socket) }, runtime))
}

/// The library: as the environment says, or beside this one, or as the loader finds it.
fn load() -> Result<*mut c_void, Error> {
    let named = std::env::var_os(LIBRARY_VARIABLE).filter(|name| !name.is_empty());
    if let Some(name) = named {
        let name = CString::new(name.into_vec()).map_err(|_| {
            Error::InvalidArgument(format!("`{LIBRARY_VARIABLE}` contains a zero byte"))
        })?;
        return open_library(&name)
            .map_err(|text| cannot("load the library that TAKT_EMBEDDED_LIBRARY names", text));
    }
    if let Some(beside) = beside_us()
        && let Ok(library) = open_library(&beside)
    {
        return Ok(library);
    }
    open_library(LIBRARY).map_err(|text| {
        cannot(
            "load the embedded runtime",
            format!("{text}; install libtakt_embedded.so beside libtakt.so, or name it in {LIBRARY_VARIABLE}"),
        )
    })
}

fn open_library(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: a C string; the library's initialisers are those of a Rust library and do nothing.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(loader_error());
    }
    Ok(library)
}

fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, Error> {
    // SAFETY: an open library and a C string.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(cannot("use libtakt_embedded.so", loader_error()));
    }
    Ok(found)
}

fn loader_error() -> String {
    // SAFETY: dlerror has no conditions; its text is valid until this thread's next call to the loader.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader gives no reason".into();
    }
    // SAFETY: not null, so it is a C string.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// The file beside the library that this code is in.
fn beside_us() -> Option<CString> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let here: fn() -> Option<CString> = beside_us;
    // SAFETY: an address of this library, and room for the result.
    if unsafe { libc::dladdr(here as *const c_void, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, so it is filled in.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a C string that lives as long as the library is loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    let beside = path.parent()?.join(LIBRARY.to_str().ok()?);
    CString::new(beside.into_os_string().into_vec()).ok()
}
