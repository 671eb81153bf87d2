//! `takt reserve tune`.

use std::collections::HashMap;
use std::fs;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use takt_bench::reservations::Deadline;
use takt_reserve::Nanos;
use takt_reserve::measure::{jobs, ran};
use takt_reserve::tune::{Needs, Seen};

use super::measure::short;
use super::watch::{Counted, Thread, WatchError, follow, until_told};
use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};

/// Variables that takt-node gives containers with a reservation, and those of which the claim allows other runtimes: the
/// least and the most, in nanoseconds.
const GRANT: &str = "TAKT_GRANT_";
const TUNE: &str = "TAKT_TUNE_";

const HELP: &str = "\
Follows a process that runs already, and what it has started, and compares what its threads with a
reservation (SCHED_DEADLINE) used of it with what they need: the longest job and a margin, or the jobs
of as many periods as pass until the next. A thread that has used all that it had may want more than
can be seen: twice of it is proposed then. As root on the node, or with CAP_PERFMON and, to set,
CAP_SYS_NICE. For a pod: the number that the container runtime has for it.

--set sets what is proposed, where that is more or a tenth less, within what is allowed: for a container with a claim what the claim's
parameters say (minRuntime, maxRuntime), for other programs --least and --most. Everything else of
the reservation stays. A thread that comes later begins with the claim's runtime again.

What was seen is not what may happen: drive the program hard while it is followed. Where the kernel's records came too fast (lost
records), nothing is set lower. What waits in the
middle of a job, polls, or is hidden by a busy machine is told under `takt reserve measure --help`.

Examples:
  takt reserve tune --process \"$(pgrep -x controller)\"
  takt reserve tune --process 4242 --seconds 30 --set --rounds 0
  takt reserve tune --process 4242 --set --least 500us --most 4ms
  takt reserve tune --process 4242 --json | jq '.threads[] | {name, runtime, needs}'";

/// Compares what a running program's threads have reserved with what they need, and sets it.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Tune {
    /// The process to follow, with what it has started or starts; several with commas
    #[arg(long, value_name = "PID", value_delimiter = ',', required = true, value_parser = clap::value_parser!(u32).range(1..))]
    process: Vec<u32>,
    /// For how long it is followed before anything is said
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// How often that is done; 0: until Ctrl-C, or until all have ended
    #[arg(long, value_name = "N", default_value_t = 1)]
    rounds: u32,
    #[command(flatten)]
    counted: Counted,
    /// Give the threads what is proposed
    #[arg(long)]
    set: bool,
    /// The least runtime that is set
    #[arg(long, value_name = "TIME", requires = "set")]
    least: Option<Nanos>,
    /// The most that is set
    #[arg(long, value_name = "TIME", requires = "set")]
    most: Option<Nanos>,
    #[command(flatten)]
    form: Form,
}

/// What was found in a round.
#[derive(Serialize)]
struct Tuned {
    processes: Vec<u32>,
    watched_ns: u64,
    lost_records: u64,
    threads: Vec<Found>,
}

#[derive(Serialize)]
struct Found {
    thread: u32,
    name: String,
    runtime: Nanos,
    period: Nanos,
    ran_ns: u64,
    /// What it used of what it had, in millionths.
    used_ppm: u64,
    needs: Option<Needs>,
    /// Why that is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
    /// What it has been given.
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<Nanos>,
    /// Why it was not given what it needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    unset: Option<String>,
}

/// What may be set.
struct Allowed {
    /// What each claim says.
    claims: Vec<RangeInclusive<u64>>,
    /// What the command says.
    told: RangeInclusive<u64>,
}

impl Tune {
    pub fn run(self) -> Result<(), Failure> {
        let margin = self.counted.margin()?;
        let allowed = match self.set {
            true => Some(self.allowed()?),
            false => None,
        };
        let stop = until_told()?;
        let limit = Duration::from_secs(self.seconds.into());
        let mut round = 0;
        loop {
            let watched = match follow(&self.process, Some(limit), &stop) {
                Ok(watched) => watched,
                // It has ended between two rounds.
                Err(WatchError::NoProcess(_)) if round > 0 => return Ok(()),
                Err(error) => return Err(Failure::Other(error.to_string())),
            };
            let lost = watched.lost;
            let length = Nanos::new(u64::try_from(watched.watched.as_nanos()).unwrap_or(u64::MAX));
            let ended = !watched.stopped;
            let mut tuned = Tuned {
                processes: self.process.clone(),
                watched_ns: length.get(),
                lost_records: lost,
                threads: Vec::new(),
            };
            let seen = watched.threads.into_iter();
            for thread in seen.filter(|thread| self.counted.wants(thread)) {
                // One that has ended has none.
                if let Ok(Some(has)) = Deadline::of(thread.id) {
                    let allowed = allowed.as_ref().map(|allowed| (allowed, lost));
                    let found = self.judge(thread, &has, length, margin, allowed);
                    tuned.threads.push(found);
                }
            }
            let over = stop.load(Ordering::Relaxed);
            if tuned.threads.is_empty() && !over {
                return Err(Failure::Other(format!(
                    "no thread of process {} that ran has a reservation (SCHED_DEADLINE): `chrt -a -p {}` says what they have",
                    self.numbers(),
                    self.process[0]
                )));
            }
            match self.form.json {
                true => print_json(&tuned)?,
                false => print(&tell(&tuned))?,
            }
            round += 1;
            if over || ended || round == self.rounds {
                return Ok(());
            }
        }
    }

    fn numbers(&self) -> String {
        let numbers: Vec<String> = self.process.iter().map(u32::to_string).collect();
        numbers.join(", ")
    }

    fn judge(
        &self,
        thread: Thread,
        has: &Deadline,
        watched: Nanos,
        margin: u32,
        allowed: Option<(&Allowed, u64)>,
    ) -> Found {
        let ran = ran(&thread.switches);
        let jobs = jobs(&thread.switches, self.counted.join);
        let seen = Seen {
            jobs: &jobs,
            ran,
            watched,
            runtime: has.runtime,
            period: has.period,
        };
        let mut found = Found {
            thread: thread.id,
            name: thread.name.chars().filter(|c| !c.is_control()).collect(),
            runtime: has.runtime,
            period: has.period,
            ran_ns: ran.get(),
            used_ppm: seen.used_ppm(),
            needs: None,
            unknown: None,
            set: None,
            unset: None,
        };
        match seen.needs(margin) {
            Ok(needs) => found.needs = Some(needs),
            Err(error) => found.unknown = Some(error.to_string()),
        }
        if let (Some((allowed, lost)), Some(needs)) = (allowed, found.needs) {
            let wanted = needs.runtime().min(has.deadline);
            match allowed.to_set(has.runtime, wanted, lost) {
                Ok(None) => {}
                Ok(Some(runtime)) => match set(thread.id, has, runtime) {
                    Ok(()) => found.set = Some(runtime),
                    Err(error) => found.unset = Some(error),
                },
                Err(error) => found.unset = Some(error),
            }
        }
        found
    }

    /// What the claims of the processes and the command allow to be set.
    fn allowed(&self) -> Result<Allowed, Failure> {
        let told = self.least.map_or(0, Nanos::get)..=self.most.map_or(u64::MAX, Nanos::get);
        if told.is_empty() {
            return Err(Failure::Other(format!(
                "--least {} is above --most {}: swap them",
                Nanos::new(*told.start()),
                Nanos::new(*told.end())
            )));
        }
        let mut variables = HashMap::new();
        for process in &self.process {
            let text = fs::read(format!("/proc/{process}/environ")).map_err(|error| {
                Failure::Other(format!(
                    "cannot read what process {process} was started with: {error}; that needs root on its node"
                ))
            })?;
            for variable in String::from_utf8_lossy(&text).split('\0') {
                if let Some((name, value)) = variable.split_once('=') {
                    variables.insert(name.to_owned(), value.to_owned());
                }
            }
        }
        let claims = variables
            .iter()
            .filter(|(name, _)| name.starts_with(TUNE))
            .map(|(name, value)| {
                let (least, most) = value
                    .split_once(' ')
                    .and_then(|(least, most)| Some((least.parse().ok()?, most.parse().ok()?)))
                    .ok_or_else(|| {
                        Failure::Other(format!("{name} is {value:?}, which is not of takt-node"))
                    })?;
                Ok(least..=most)
            })
            .collect::<Result<Vec<RangeInclusive<u64>>, Failure>>()?;
        if claims.is_empty() {
            if variables.keys().any(|name| name.starts_with(GRANT)) {
                return Err(Failure::Other(
                    "the container's claim allows no other runtime, and takt-node would put it back: add minRuntime and maxRuntime to its parameters, with the bandwidth for the latter"
                        .to_owned(),
                ));
            }
            if self.least.is_none() || self.most.is_none() {
                return Err(Failure::Other(
                    "no claim says what may be set: add --least and --most".to_owned(),
                ));
            }
        }
        Ok(Allowed { claims, told })
    }
}

impl Allowed {
    /// What a thread that has `now` is to be given, if anything else, where so many records of what ran were lost.
    fn to_set(&self, now: Nanos, wanted: Nanos, lost: u64) -> Result<Option<Nanos>, String> {
        let runtime = self.within(now, wanted)?;
        if is_near(now, runtime) {
            return Ok(None);
        }
        // Without them jobs look shorter than they were.
        if lost > 0 && runtime < now {
            return Err(format!(
                "{lost} records were lost, so that it may need more than the {runtime} that were seen: nothing is set lower; run it again with \
                 less load beside it"
            ));
        }
        Ok(Some(runtime))
    }

    /// The nearest to `wanted` that is allowed to a thread that has `now`.
    fn within(&self, now: Nanos, wanted: Nanos) -> Result<Nanos, String> {
        let (mut least, mut most) = (*self.told.start(), *self.told.end());
        let mut of_a_claim = self.claims.is_empty();
        // Whichever claim's it is, if there are several.
        for claim in self
            .claims
            .iter()
            .filter(|claim| claim.contains(&now.get()))
        {
            least = least.max(*claim.start());
            most = most.min(*claim.end());
            of_a_claim = true;
        }
        if !of_a_claim {
            return Err("no claim of its container allows another runtime".to_owned());
        }
        if least > most {
            return Err(format!(
                "nothing is allowed by its claims and by --least and --most at once: at least {}, at most {}",
                Nanos::new(least),
                Nanos::new(most)
            ));
        }
        Ok(Nanos::new(wanted.get().clamp(least, most)))
    }
}

/// Whether a thread may keep what it has: what would be enough, and a tenth more at most.
fn is_near(has: Nanos, enough: Nanos) -> bool {
    let (has, enough) = (has.get(), enough.get());
    enough <= has && has - enough <= has / 10
}

fn set(thread: u32, has: &Deadline, runtime: Nanos) -> Result<(), String> {
    Deadline { runtime, ..*has }.give(thread).map_err(|error| {
        let remedy = match error.raw_os_error() {
            Some(ESRCH) => return "it has ended".to_owned(),
            Some(EBUSY) => ": the kernel has no room for that beside the other reservations",
            Some(EPERM) => ": that needs root, or CAP_SYS_NICE",
            _ => "",
        };
        format!("{runtime} is refused: {error}{remedy}")
    })
}

const EBUSY: i32 = rustix::io::Errno::BUSY.raw_os_error();
const ESRCH: i32 = rustix::io::Errno::SRCH.raw_os_error();
const EPERM: i32 = rustix::io::Errno::PERM.raw_os_error();

fn tell(tuned: &Tuned) -> String {
    let columns = [
        ("THREAD", Align::Right),
        ("NAME", Align::Left),
        ("RUNTIME", Align::Right),
        ("PERIOD", Align::Right),
        ("USED", Align::Right),
        ("LONGEST", Align::Right),
        ("NEEDS", Align::Right),
        ("SET", Align::Right),
    ];
    let rows = tuned.threads.iter().map(|found| {
        let longest = match found.needs {
            Some(Needs::Runtime { longest, .. }) => short(longest),
            _ => "-".to_owned(),
        };
        let needs = match found.needs {
            Some(Needs::Runtime { runtime, .. }) => short(runtime),
            Some(Needs::More { runtime }) => format!("more: {}", short(runtime)),
            None => "unknown".to_owned(),
        };
        vec![
            found.thread.to_string(),
            found.name.clone(),
            short(found.runtime),
            short(found.period),
            format!("{}%", found.used_ppm / 10_000),
            longest,
            needs,
            found.set.map_or_else(|| "-".to_owned(), short),
        ]
    });
    let mut text = table(&columns, rows.collect());
    for found in &tuned.threads {
        for (what, why) in [("needs", &found.unknown), ("not set", &found.unset)] {
            if let Some(why) = why {
                text.push_str(&format!(
                    "\n{} ({}), {what}: {why}",
                    found.thread, found.name
                ));
            }
        }
    }
    if tuned.lost_records > 0 {
        text.push_str(&format!(
            "\n{} records were lost: what was used is too low, and nothing is set lower",
            tuned.lost_records
        ));
    }
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn within(claims: &[RangeInclusive<u64>], now: u64, wanted: u64) -> Result<u64, String> {
        let allowed = Allowed {
            claims: claims.to_vec(),
            told: 0..=50,
        };
        let found = allowed.within(Nanos::new(now), Nanos::new(wanted))?;
        Ok(found.get())
    }

    #[test]
    fn of_several_claims_those_count_that_the_thread_runs_under() {
        let claims = [20..=40, 1..=2];
        assert_eq!(within(&claims, 30, 10), Ok(20));
        assert_eq!(within(&claims, 30, 35), Ok(35));
        assert_eq!(within(&claims, 30, 60), Ok(40));
        assert_eq!(within(&claims, 2, 30), Ok(2));
        assert_eq!(within(&[20..=90], 30, 60), Ok(50));
        assert_eq!(within(&[], 30, 60), Ok(50));
        let neither = within(&claims, 10, 30).expect_err("no claim has 10");
        assert_eq!(neither, "no claim of its container allows another runtime");
        let both = within(&[20..=25, 23..=30], 24, 10);
        assert_eq!(both, Ok(23));
        let apart = within(&[60..=70], 60, 60).expect_err("--most 50");
        assert!(apart.contains("at least 60ns, at most 50ns"), "{apart}");
    }

    #[test]
    fn where_records_were_lost_nothing_is_set_lower() {
        let allowed = Allowed {
            claims: Vec::new(),
            told: 0..=50,
        };
        let to_set = |now, wanted, lost| {
            let found = allowed.to_set(Nanos::new(now), Nanos::new(wanted), lost)?;
            Ok::<_, String>(found.map(Nanos::get))
        };
        assert_eq!(to_set(40, 20, 0), Ok(Some(20)));
        let lower = to_set(40, 20, 3).expect_err("lower");
        assert!(lower.starts_with("3 records were lost"), "{lower}");
        assert_eq!(to_set(40, 39, 3), Ok(None));
        assert_eq!(to_set(40, 45, 3), Ok(Some(45)));
        // Lower by what the command allows.
        assert!(to_set(80, 90, 0).is_ok() && to_set(80, 90, 3).is_err());
    }

    #[test]
    fn what_is_enough_and_a_tenth_more_at_most_is_kept() {
        let near = |has, enough| is_near(Nanos::new(has), Nanos::new(enough));
        assert!(near(80, 80) && near(80, 72));
        assert!(!near(80, 71) && !near(80, 81));
    }
}
