//! The state of the clock as a message of the admin API.

use takt_clock::assess::identity;
use takt_clock::ptp4l::{PtpReading, Role};
use takt_clock::{ClockStatus, State};

use super::proto;

impl From<State> for proto::ClockState {
    fn from(state: State) -> Self {
        match state {
            State::Synchronised => Self::Synchronised,
            State::Holdover => Self::Holdover,
            State::FreeRunning => Self::FreeRunning,
        }
    }
}

impl From<&ClockStatus> for proto::Clock {
    fn from(status: &ClockStatus) -> Self {
        Self {
            name: "CLOCK_TAI".into(),
            state: proto::ClockState::from(status.state).into(),
            source: status.source.to_string(),
            reference: status.reference.clone(),
            offset_ns: status.offset_ns,
            bound_ns: status.bound_ns,
            tai_offset_seconds: status.tai_offset.seconds,
            ptp_tai_offset_seconds: status.tai_offset.by_ptp,
            warnings: status
                .warnings
                .iter()
                .map(|warning| proto::ClockWarning {
                    code: warning.code.into(),
                    message: warning.message.clone(),
                })
                .collect(),
            steps: status.steps,
            kernel: status.kernel.map(|kernel| proto::KernelClock {
                synchronised: kernel.synchronised,
                max_error_ns: kernel.max_error_ns,
                estimated_error_ns: kernel.estimated_error_ns,
            }),
            ptp4l: status.ptp4l.as_ref().map(ptp),
            chrony: status.chrony.as_ref().map(|tracking| proto::ChronyClock {
                offset_ns: tracking.offset_ns,
                stratum: tracking.stratum.into(),
                root_delay_ns: tracking.root_delay_ns,
                root_dispersion_ns: tracking.root_dispersion_ns,
            }),
            device: status.device.map(|device| proto::DeviceClock {
                realtime_minus_device_ns: device.realtime_minus_phc_ns,
                error_ns: device.error_ns,
            }),
            host: status.host.map(|host| proto::HostClock {
                synchronised: host.synchronised,
                stratum: host.stratum.into(),
                offset_ns: host.offset_ns,
                error_ns: host.error_ns,
                distance_ns: host.distance_ns,
            }),
        }
    }
}

fn ptp(reading: &PtpReading) -> proto::PtpClock {
    let role = match reading.role() {
        Role::Follower => "follower",
        Role::Acquiring => "acquiring",
        Role::Grandmaster => "grandmaster",
        Role::Alone => "alone",
    };
    proto::PtpClock {
        domain: reading.clock.domain.into(),
        role: role.into(),
        grandmaster: identity(reading.status.grandmaster),
        steps: reading.current.steps.into(),
        offset_ns: reading.status.offset_ns,
        path_delay_ns: reading.path_delay_ns(),
        ptp_timescale: reading.time.ptp_timescale,
    }
}
