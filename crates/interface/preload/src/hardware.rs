//! Hardware time stamps where there are none, for programs that insist on them: the instants of departure in their
//! place, if the environment asks for that (`Documentation/networking/timestamping.rst`, section 3).

use std::ffi::c_int;

use libc::ifreq;

use crate::announce;
use crate::memory;
use crate::process;

/// `struct hwtstamp_config` of `linux/net_tstamp.h`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Config {
    flags: c_int,
    tx_type: c_int,
    rx_filter: c_int,
}

// SAFETY: plain integers.
unsafe impl memory::Raw for Config {}

/// `HWTSTAMP_TX_ON`, the most that there is: every frame of a socket that asks for it is stamped.
const TX_ON: c_int = 1;
/// `HWTSTAMP_FILTER_NONE`: what is received is the kernel's, and not stamped.
const FILTER_NONE: c_int = 0;

/// What `SIOCSHWTSTAMP` says in the place of the kernel, which has just refused it; `None`: the kernel's word counts.
pub fn configure(request: *mut libc::c_void) -> Option<c_int> {
    // An interface that has no such stamps.
    if !announce::stamps_as_hardware() || process::errno() != libc::EOPNOTSUPP {
        return None;
    }
    let answer = process::inside(|_| {
        let request = memory::read(request.cast::<ifreq>())?;
        // SAFETY: the field that this call has.
        let place = unsafe { request.ifr_ifru.ifru_data }.cast::<Config>();
        let config = answered(memory::read(place)?)?;
        memory::write(&config, place)
    });
    answer?.map_or_else(
        |errno| {
            process::set_errno(errno);
            Some(-1)
        },
        |()| Some(0),
    )
}

/// What comes of a wish.
fn answered(wished: Config) -> Result<Config, c_int> {
    if wished.flags != 0 {
        return Err(libc::EINVAL);
    }
    if !(0..=TX_ON).contains(&wished.tx_type) {
        return Err(libc::ERANGE);
    }
    Ok(Config {
        rx_filter: FILTER_NONE,
        ..wished
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_what_is_sent_are_promised_and_nothing_else() {
        let wish = |flags, tx_type| {
            answered(Config {
                flags,
                tx_type,
                rx_filter: 1,
            })
            .map(|config| (config.flags, config.tx_type, config.rx_filter))
        };
        assert_eq!(wish(0, 0), Ok((0, 0, 0)));
        assert_eq!(wish(0, TX_ON), Ok((0, TX_ON, FILTER_NONE)));
        // One-step stamps are written into the frame.
        assert_eq!(wish(0, 2), Err(libc::ERANGE));
        assert_eq!(wish(1, TX_ON), Err(libc::EINVAL));
    }
}
