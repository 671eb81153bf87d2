//! `takt clock`.

mod setup;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand};
use takt_clock::{Ask, Observer, Sources, SystemTai, chrony};
use taktd::admin::json::clock_state_name;
use taktd::admin::proto::{Clock as Told, GetClockRequest};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json, wrap};

const HELP: &str = "\
What the states and bounds are made of, and what to do about warnings: docs/reference/clock.md.

Examples:
  takt clock                                    what the node knows
  takt clock --require 1us && start-the-cell    only on a clock that is off by 1 us at most
  takt clock --local --ptp4l /var/run/ptp4l     without a node
  takt clock --local --host 10.0.0.1:123        in a virtual machine: its host's clock, too
  takt clock setup --interface eth0 --role follower
  takt clock --json | jq -r '.warnings[].code'";

/// Shows how good the clock is that launch times and gates go by.
#[derive(Debug, Args)]
#[command(after_help = HELP, args_conflicts_with_subcommands = true)]
pub struct Clock {
    #[command(subcommand)]
    action: Option<Action>,
    /// Exit with 1 unless the clock is known to be off by this at most, such as 1us
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    require: Option<Duration>,
    /// Ask the programs that keep the clock, not the node
    #[arg(long)]
    local: bool,
    /// With --local: Unix socket of ptp4l
    #[arg(long, value_name = "SOCKET", requires = "local")]
    ptp4l: Option<PathBuf>,
    /// With --local: PTP domain of ptp4l
    #[arg(long, value_name = "NUMBER", requires = "local", default_value_t = 0)]
    ptp_domain: u8,
    /// With --local: where chronyd takes questions, an address or the path of its Unix socket
    #[arg(long, value_name = "ADDRESS", requires = "local", value_parser = address)]
    chrony: Option<chrony::Address>,
    /// With --local: PTP clock of the network device, such as /dev/ptp0
    #[arg(long, value_name = "DEVICE", requires = "local")]
    device: Option<PathBuf>,
    /// With --local: where the physical host answers NTP, if this machine is its guest, such as 10.0.0.1:123
    #[arg(long, value_name = "ADDRESS", requires = "local")]
    host: Option<SocketAddr>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Write what has a leader and its followers keep one time: ptp4l and phc2sys of linuxptp
    Setup(setup::Setup),
}

fn address(text: &str) -> Result<chrony::Address, String> {
    if text.starts_with('/') {
        return Ok(chrony::Address::Unix(text.into()));
    }
    text.parse().map(chrony::Address::Udp).map_err(|_| {
        "write an address such as 127.0.0.1:323, or the path of a Unix socket".to_owned()
    })
}

impl Clock {
    pub fn run(self) -> Result<(), Failure> {
        if let Some(Action::Setup(setup)) = self.action {
            return setup.run();
        }
        let json = self.form.json;
        let (clock, unmet) = if self.local { self.look() } else { self.ask()? };
        if json {
            print_json(&clock)?;
        } else {
            print(&describe(&clock))?;
        }
        match unmet {
            Some(unmet) => Err(Failure::Other(unmet)),
            None => Ok(()),
        }
    }

    /// The clock as the node has it, and why that is not enough.
    fn ask(self) -> Result<(Told, Option<String>), Failure> {
        let required_ns = self.require.map(|required| required.as_nanos());
        let request = GetClockRequest {
            required_ns: required_ns.map(|nanos| u64::try_from(nanos).unwrap_or(u64::MAX)),
        };
        let answer = self.daemon.ask(async |mut client| {
            let answer = client.get_clock(request).await?;
            Ok(answer.into_inner())
        })?;
        let clock = answer.clock.ok_or_else(|| {
            Failure::Other("the node has not looked at its clock yet: ask again".into())
        })?;
        Ok((clock, Some(answer.unmet).filter(|unmet| !unmet.is_empty())))
    }

    /// The same without a node.
    fn look(self) -> (Told, Option<String>) {
        fn ask<A>(asked: Option<A>, usual: Ask<A>) -> Ask<A> {
            asked.map_or(usual, Ask::Expected)
        }
        let usual = Sources::default();
        let sources = Sources {
            ptp4l: ask(self.ptp4l, usual.ptp4l),
            ptp_domain: self.ptp_domain,
            chrony: ask(self.chrony, usual.chrony),
            device: self.device,
            host: self.host,
            utc: usual.utc,
        };
        let status = Observer::new(sources, Arc::new(SystemTai)).observe();
        let unmet = self.require.and_then(|time| status.within(time).err());
        ((&status).into(), unmet.map(|unmet| unmet.to_string()))
    }
}

fn describe(clock: &Told) -> String {
    let unknown = || "not known".to_owned();
    let mut lines = vec![
        ("clock", clock.name.clone()),
        (
            "state",
            format!("{}, by {}", clock_state_name(clock.state), clock.source),
        ),
        ("reference", clock.reference.clone()),
        (
            "offset",
            clock.offset_ns.map_or_else(unknown, |ns| nanos(ns as f64)),
        ),
        (
            "bound",
            clock.bound_ns.map_or_else(unknown, |ns| nanos(ns as f64)),
        ),
        (
            "TAI - UTC",
            match clock.tai_offset_seconds {
                0 => "not set".to_owned(),
                seconds => format!("{seconds} s"),
            },
        ),
        ("steps seen", clock.steps.to_string()),
    ];
    if let Some(kernel) = &clock.kernel {
        let flag = match kernel.synchronised {
            true => "synchronised",
            false => "not synchronised",
        };
        let error = nanos(kernel.max_error_ns as f64);
        lines.push(("kernel", format!("{flag}, largest error {error}")));
    }
    if let Some(ptp) = &clock.ptp4l {
        let text = format!(
            "{} of domain {}, grandmaster {}, offset {}, path delay {}",
            ptp.role,
            ptp.domain,
            ptp.grandmaster,
            nanos(ptp.offset_ns as f64),
            nanos(ptp.path_delay_ns as f64)
        );
        lines.push(("ptp4l", text));
    }
    if let Some(chrony) = &clock.chrony {
        let text = format!(
            "stratum {}, offset {}, root delay {}, root dispersion {}",
            chrony.stratum,
            nanos(chrony.offset_ns as f64),
            nanos(chrony.root_delay_ns as f64),
            nanos(chrony.root_dispersion_ns as f64)
        );
        lines.push(("chrony", text));
    }
    if let Some(device) = &clock.device {
        let text = format!(
            "CLOCK_REALTIME is {} from it, to within {}",
            nanos(device.realtime_minus_device_ns as f64),
            nanos(device.error_ns as f64)
        );
        lines.push(("device", text));
    }
    if let Some(host) = &clock.host {
        let state = match host.synchronised {
            true => format!(
                "synchronised, stratum {}, off by {} at most",
                host.stratum,
                nanos(host.distance_ns as f64)
            ),
            false => "not synchronised".to_owned(),
        };
        let text = format!(
            "{state}; this clock is {} from it, to within {}",
            nanos(host.offset_ns as f64),
            nanos(host.error_ns as f64)
        );
        lines.push(("host", text));
    }
    let lines = lines.into_iter();
    let mut text: String = lines
        .map(|(name, value)| format!("{name:<10} {value}\n"))
        .collect();
    for warning in &clock.warnings {
        let warning = format!("{} [{}]", warning.message, warning.code);
        text += &format!("warning    {}\n", wrap(&warning, 69).join("\n           "));
    }
    text
}

/// A time for people.
fn nanos(nanos: f64) -> String {
    let (unit, size) = match nanos.abs() {
        1e9.. => ("s", 1e9),
        1e6.. => ("ms", 1e6),
        1e3.. => ("µs", 1e3),
        _ => return format!("{nanos} ns"),
    };
    format!("{:.3} {unit}", nanos / size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use taktd::admin::proto::{ClockState, ClockWarning};

    #[test]
    fn a_clock_that_nobody_keeps_says_so_and_what_to_do() {
        let text = describe(&Told {
            name: "CLOCK_TAI".into(),
            state: ClockState::FreeRunning.into(),
            source: "kernel".into(),
            warnings: vec![ClockWarning {
                code: "tai-offset-unset".into(),
                message: "tell the kernel".into(),
            }],
            ..Told::default()
        });
        for line in [
            "state      free-running, by kernel",
            "bound      not known",
            "TAI - UTC  not set",
            "warning    tell the kernel [tai-offset-unset]",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
        }
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        assert_eq!(nanos(-12.0), "-12 ns");
        assert_eq!(nanos(1_500.0), "1.500 µs");
        assert_eq!(nanos(-2_500_000.0), "-2.500 ms");
        assert_eq!(nanos(37e9), "37.000 s");
    }
}
