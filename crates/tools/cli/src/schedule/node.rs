//! `takt schedule install|remove|status`: schedules on a node.

use clap::Args;
use serde::Serialize;
use takt_clock::{Clock, SystemTai};
use takt_schedule::check::Severity;
use takt_schedule::form::Document;
use taktd::admin::client;
use taktd::admin::proto::{
    AbsentSchedule, ClassDepartures, GateSchedule, InstallScheduleRequest, LinkSchedule,
    ListSchedulesRequest, RemoveScheduleRequest, Session,
};

use super::source::{LinkOptions, One, not_done};
use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};

/// Who may keep what others send (`OtherTraffic` of the runtime).
pub const OTHER_TRAFFIC: [&str; 4] = ["port", "taprio", "taprio-offload", "auto"];

const INSTALL: &str = "\
The schedule begins at its base time, or with the first cycle from now where that has passed; the one
that runs goes on until then, and no gate sees a gap. It lasts until it is removed, also over a restart or a
crash of a node that has a state directory (`node.state`, or StateDirectory= of its unit).

A table of priorities (`map` of taprio, `priorities` in TOML) says whose gate frames of each priority pass. What of a
document is not done, such as preemption (`fp`) or offload (`flags`), is refused by name.

A schedule with `require-sync` is refused on a clock that is not known to be that good: `takt clock`.

--other-traffic says who keeps what others send by the link's interface in best effort's windows:
  port            `takt uplink` and `takt veth attach --all`, what they take; the rest is beside
  taprio          the kernel's taprio, in software; refused where it cannot
  taprio-offload  the gates of the device, whose clock must be CLOCK_TAI; refused where it cannot
  auto            the device, or else the kernel, or else as `port`

Examples:
  takt schedule install eth0.toml --datapath udp --rate 1gbit --other-traffic taprio
  takt schedule install eth0.toml --datapath xdp --rate 1gbit
  takt schedule convert eth0.sh --to toml | takt schedule install - --datapath udp";

/// Installs a schedule on the link of a datapath of this node.
#[derive(Debug, Args)]
#[command(after_help = INSTALL)]
pub struct Install {
    #[command(flatten)]
    one: One,
    #[command(flatten)]
    link: LinkOptions,
    /// Datapath whose link it is, see `takt status`
    #[arg(long, value_name = "NAME")]
    datapath: String,
    /// Who keeps what others send by the link's interface
    #[arg(long, value_name = "WHO", default_value = "port", value_parser = OTHER_TRAFFIC)]
    other_traffic: String,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

const REMOVE: &str = "\
Examples:
  takt schedule remove --datapath xdp";

/// Opens all gates of a link again.
#[derive(Debug, Args)]
#[command(after_help = REMOVE)]
pub struct Remove {
    /// Datapath whose link it is
    #[arg(long, value_name = "NAME")]
    datapath: String,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

const STATUS: &str = "\
Counted are the frames of messages with a launch time and, on a link with a schedule, of all messages.
The error is how much later than planned a frame was handed to the technology; half of the frames were
below the first figure.

Examples:
  takt schedule status
  takt schedule status --json | jq '.[].classes[] | {class, sent, dropped_late}'";

/// Shows the schedules that run, and what became of the frames of each class.
#[derive(Debug, Args)]
#[command(after_help = STATUS)]
pub struct Status {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct Installed {
    datapath: String,
    begins_ns: i64,
}

#[derive(Serialize)]
struct Removed {
    datapath: String,
    removed: bool,
}

impl Install {
    pub fn run(self) -> Result<(), Failure> {
        let source = self.one.read()?;
        source.tell_lost();
        let datapath = self.datapath;
        let place = Place {
            datapath: &datapath,
            rate_bps: self.link.rate_bps(),
            vlan: self.link.vlan,
            other_traffic: &self.other_traffic,
        };
        let begins_ns = install(&self.daemon, &source.name, &source.document, &place)?;
        for finding in
            takt_schedule::check(&source.document.schedule, &source.port_at(&self.link), None)
        {
            if finding.severity >= Severity::Warning {
                eprintln!("{}: {finding}", source.name);
            }
        }
        if self.form.json {
            return print_json(&Installed {
                datapath,
                begins_ns,
            });
        }
        print(&when(&source.name, begins_ns, &datapath))
    }
}

/// Where a schedule is installed.
pub struct Place<'p> {
    pub datapath: &'p str,
    /// The link's, bits per second.
    pub rate_bps: u64,
    /// The port inserts a tag.
    pub vlan: bool,
    /// Who keeps what others send by its interface.
    pub other_traffic: &'p str,
}

/// Installs a document, called `name` in messages; when it begins.
pub fn install(
    daemon: &Daemon,
    name: &str,
    document: &Document,
    place: &Place<'_>,
) -> Result<i64, Failure> {
    let classes = document.installable();
    let classes = classes.map_err(|refused| not_done(name, &refused))?;
    let request = InstallScheduleRequest {
        datapath: place.datapath.to_owned(),
        schedule: Some((&document.schedule).into()),
        link_rate_bps: place.rate_bps,
        vlan: place.vlan,
        other_traffic: place.other_traffic.to_owned(),
        classes: classes.numbers().map(u32::from).to_vec(),
    };
    daemon.ask(async |mut client| {
        let answer = client.install_schedule(request).await?;
        Ok(answer.into_inner().begins_ns)
    })
}

/// A line that says when an installed schedule runs.
pub fn when(name: &str, begins_ns: i64, datapath: &str) -> String {
    let wait = begins_ns - SystemTai.now().as_nanos();
    let when = match wait {
        ..=0 => "runs".to_owned(),
        _ => format!("will run in {:.3} s", wait as f64 / 1e9),
    };
    format!("{name}: {when} on {datapath}\n")
}

impl Remove {
    pub fn run(self) -> Result<(), Failure> {
        let datapath = self.datapath;
        let request = RemoveScheduleRequest {
            datapath: datapath.clone(),
        };
        let removed = self.daemon.ask(async |mut client| {
            let answer = client.remove_schedule(request).await?;
            Ok(answer.into_inner().removed)
        })?;
        if self.form.json {
            return print_json(&Removed { datapath, removed });
        }
        if !removed {
            return Err(Failure::Other(format!(
                "{datapath} has no schedule: see `takt schedule status`"
            )));
        }
        print(&format!("{datapath}: all gates are open\n"))
    }
}

impl Status {
    pub fn run(self) -> Result<(), Failure> {
        let (schedules, sessions) = self.daemon.ask(async |mut client| {
            let schedules = client.list_schedules(ListSchedulesRequest {}).await?;
            let sessions = client::sessions(&mut client, "").await?;
            Ok((schedules.into_inner(), sessions))
        })?;
        let taken: Vec<Taken> = sessions.iter().filter_map(Taken::by).collect();
        let (links, absent) = (schedules.links.into_iter(), schedules.absent.into_iter());
        if self.form.json {
            let there = links.map(|link| Told {
                link,
                taken: &taken,
                absent: None,
            });
            let absent = absent.map(|absent| Told {
                link: LinkSchedule {
                    datapath: absent.datapath,
                    ..LinkSchedule::default()
                },
                taken: &[],
                absent: absent.schedule,
            });
            return print_json(&there.chain(absent).collect::<Vec<_>>());
        }
        let now = SystemTai.now().as_nanos();
        let links = links.map(|link| describe(&link, now, &taken));
        let absent = absent.map(|absent| describe_absent(&absent));
        let text: Vec<String> = links.chain(absent).collect();
        print(&text.join("\n"))
    }
}

/// What `takt schedule status --json` prints of a link.
#[derive(Serialize)]
struct Told<'t> {
    #[serde(flatten)]
    link: LinkSchedule,
    /// What this runtime sends for those who know nothing of it.
    taken: &'t [Taken],
    /// The schedule of a datapath that is not there: nobody keeps its gates.
    absent: Option<GateSchedule>,
}

/// Packets of others that a command gives the runtime.
#[derive(Serialize)]
struct Taken {
    /// The host's end of a pod's veth, or the interface that they would leave by.
    device: String,
    by: &'static str,
    /// Whose they are to the runtime.
    identity: String,
}

impl Taken {
    const UPLINK: &str = "takt uplink";
    const VETH: &str = "takt veth --all";

    /// By a session, if it says so and its programs are where it says.
    fn by(session: &Session) -> Option<Self> {
        let uplink = session.name.strip_prefix("takt uplink ");
        let veth = || {
            session
                .name
                .strip_prefix("takt veth ")?
                .strip_suffix(" all")
        };
        let (device, by, is) = match uplink {
            Some(device) => (
                device,
                Self::UPLINK,
                takt_ingress::uplink_status(device)
                    .is_ok_and(|status| status.is_some_and(|status| status.taking)),
            ),
            None => {
                let device = veth()?;
                let status = takt_ingress::status(device);
                (device, Self::VETH, status.is_ok_and(|status| status.all))
            }
        };
        is.then(|| Self {
            device: device.to_owned(),
            by,
            identity: session.identity.clone(),
        })
    }

    /// As a person reads it.
    fn text(&self) -> String {
        let Self {
            device,
            by,
            identity,
        } = self;
        match *by {
            Self::UPLINK => format!("what leaves by {device} without Takt ({by})"),
            _ => format!("what {identity} sends by {device} without a launch time ({by})"),
        }
    }
}

fn describe(link: &LinkSchedule, now: i64, taken: &[Taken]) -> String {
    let mut text = format!("{}: ", link.datapath);
    text += &match &link.operational {
        None => "no schedule, all gates are open".to_owned(),
        Some(schedule) => format!(
            "cycle {} of {:.3} ms with {} entries",
            link.cycle.unwrap_or_default(),
            schedule.cycle_time_ns as f64 / 1e6,
            schedule.entries.len()
        ),
    };
    if link.operational.is_some() {
        text += &format!(
            ", {}{}",
            match link.link_rate_bps {
                0 => "frames take no time".to_owned(),
                rate => format!("guard bands for {} Mbit/s", rate as f64 / 1e6),
            },
            if link.vlan { " with a VLAN tag" } else { "" }
        );
    }
    if let Some(begins) = link.pending_begins_ns {
        text += &format!(
            "; another one begins in {:.3} s",
            (begins - now) as f64 / 1e9
        );
    }
    if link.late_changes > 0 {
        text += &format!("; {} asked for too late", link.late_changes);
    }
    text += "\n";
    if link.operational.is_some() {
        text += &enforced(link, taken);
    }
    if !link.clock_problem.is_empty() {
        text += &format!("  warning: {}\n", link.clock_problem);
    }
    let used = link.classes.iter().filter(|class| class.offered > 0);
    let rows: Vec<Vec<String>> = used.map(row).collect();
    if rows.is_empty() {
        return text;
    }
    let columns = [
        ("class", Align::Right),
        ("offered", Align::Right),
        ("queued", Align::Right),
        ("sent", Align::Right),
        ("late", Align::Right),
        ("gate missed", Align::Right),
        ("refused", Align::Right),
        ("dropped", Align::Right),
        ("overruns", Align::Right),
        ("error p50", Align::Right),
        ("error p99", Align::Right),
    ];
    text + &table(&columns, rows)
}

fn describe_absent(AbsentSchedule { datapath, schedule }: &AbsentSchedule) -> String {
    let cycle_ns = schedule.as_ref().map_or(0, |gates| gates.cycle_time_ns);
    format!(
        "{datapath}: not there, nobody keeps the gates of its schedule (a cycle of {:.3} ms): what would pass them leaves by other datapaths. `takt status` says why it is not there, \
         `takt schedule remove --datapath {datapath}` forgets one that was installed\n",
        cycle_ns as f64 / 1e6
    )
}

/// For whom the gates are kept, and for whom not.
fn enforced(link: &LinkSchedule, taken: &[Taken]) -> String {
    let moved = (0..).zip(&link.priorities);
    let moved: Vec<String> = moved
        .filter(|(priority, class)| priority != *class)
        .map(|(priority, class)| format!("{priority} -> {class}"))
        .collect();
    let table = match moved.is_empty() {
        true => String::new(),
        false => format!("  priorities by class: {}\n", moved.join(", ")),
    };
    let chosen = link.operational.iter().flat_map(|gates| &gates.selection);
    let chosen: Vec<String> = chosen
        .map(|chosen| match chosen.idle_slope_bps {
            0 => format!("{} {}", chosen.class, chosen.algorithm),
            slope => format!(
                "{} {} of {} Mbit/s",
                chosen.class,
                chosen.algorithm,
                slope as f64 / 1e6
            ),
        })
        .collect();
    let table = match chosen.is_empty() {
        true => table,
        false => format!("{table}  selection by class: {}\n", chosen.join(", ")),
    };
    let beside = match link.beside.is_empty() {
        true => String::new(),
        false => format!(", and by {} of this runtime", link.beside.join(" and ")),
    };
    let lines = taken
        .iter()
        .map(|taken| format!("  and for: {}\n", taken.text()));
    let taken: String = lines.collect();
    let rest = match taken.is_empty() {
        true => "what",
        false => "what else",
    };
    let rest = format!(
        "{rest} leaves the same interface by the kernel's own sockets and forwarding{beside}"
    );
    let rest = match link.other_traffic_by.as_str() {
        "" => format!("  not kept for: {rest}\n"),
        by => format!(
            "  and for: {rest} (the kernel's taprio on {}, {})\n",
            link.interface,
            where_gates_are(by)
        ),
    };
    let problem = match link.other_traffic_problem.as_str() {
        "" => String::new(),
        problem => format!(
            "  warning: other traffic, {}: {problem}\n",
            link.other_traffic
        ),
    };
    format!(
        "  kept for: everything that applications send by {} of this runtime\n{taken}{rest}{problem}{table}",
        link.datapath
    )
}

fn where_gates_are(by: &str) -> &'static str {
    match by {
        "taprio-offload" => "offloaded",
        _ => "software",
    }
}

fn row(class: &ClassDepartures) -> Vec<String> {
    let dropped = class.dropped + class.dropped_late + class.dropped_gate_missed;
    vec![
        class.class.to_string(),
        class.offered.to_string(),
        class.queued.to_string(),
        class.sent.to_string(),
        class.sent_late.to_string(),
        class.sent_gate_missed.to_string(),
        (class.refused + class.refused_late).to_string(),
        dropped.to_string(),
        class.overruns.to_string(),
        below(&class.error_buckets, 0.50),
        below(&class.error_buckets, 0.99),
    ]
}

/// What so large a part of the frames was below: the upper end of its bucket.
fn below(buckets: &[u64], part: f64) -> String {
    let all: u64 = buckets.iter().sum();
    let wanted = (all as f64 * part).ceil() as u64;
    let mut seen = 0;
    for (bucket, frames) in buckets.iter().enumerate() {
        seen += frames;
        if all > 0 && seen >= wanted {
            return format!("< {:.3} µs", (1u64 << bucket) as f64 / 1e3);
        }
    }
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_the_upper_end_of_its_bucket() {
        assert_eq!(below(&[], 0.5), "-");
        assert_eq!(below(&[0, 0], 0.5), "-");
        assert_eq!(below(&[0, 1, 98, 0, 1], 0.5), "< 0.004 µs");
        assert_eq!(below(&[0, 1, 98, 0, 1], 0.99), "< 0.004 µs");
        assert_eq!(below(&[0, 1, 98, 0, 1], 1.0), "< 0.016 µs");
    }
}
