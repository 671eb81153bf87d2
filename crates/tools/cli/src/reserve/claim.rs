//! `takt reserve claim`: the manifest that `takt-node` reads, checked as it checks it.
//!
//! The names and rules are those of `kubernetes/api/v1alpha1`; a test compares what is written
//! here with `deploy/manifests`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use takt_reserve::{Nanos, Reservation};

use crate::failure::Failure;
use crate::manifest::{is_label, yaml};
use crate::output::{Form, print_json, write_text};

const HELP: &str = "\
Q, P and m go to the driver cpu.takt.dev; the capacity that the scheduler sets aside on each of the m
cores is 1000000 * Q / P (or / D), rounded up. A claim is one reservation, which outlives its pods; of
a template every pod has a claim of its own. With --image a pod that uses it is written too,
which requests as much CPU as it reserves.

Examples:
  takt reserve claim --runtime 2ms --period 10ms --cores 2
  takt reserve claim --runtime 2ms --period 10ms --template --name worker | kubectl apply -f -
  takt reserve claim --runtime 1ms --period 10ms --deadline 5ms --threads name --thread-name 'control-*'
  takt reserve claim --runtime 3ms --period 10ms --name controller --image example.com/controller:1";

const DRIVER: &str = "cpu.takt.dev";
const PARAMETERS_VERSION: &str = "cpu.takt.dev/v1alpha1";
const PARAMETERS_KIND: &str = "Reservation";
/// The most results of a claim.
const MOST_CORES: u32 = 32;
/// How long a container may run without its reservation at most.
const MOST_STARTUP: Nanos = Nanos::from_secs(600);

/// Writes the Kubernetes manifest of a reservation.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Claim {
    /// Q, the CPU time of each core in every period
    #[arg(long, value_name = "TIME")]
    runtime: Nanos,
    /// P, how often the runtime comes back
    #[arg(long, value_name = "TIME")]
    period: Nanos,
    /// How long after the start of a period the runtime has been given; without it the period
    #[arg(long, value_name = "TIME")]
    deadline: Option<Nanos>,
    /// m, on how many cores, of one node
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_CORES)))]
    cores: u32,
    /// Scheduling class of the time-critical threads; without it the node's backend chooses
    #[arg(long)]
    policy: Option<Policy>,
    /// Which threads get the reservations; without it the oldest, as many as there are cores
    #[arg(long, value_name = "RULE")]
    threads: Option<Threads>,
    /// Shell pattern for the names of threads, with --threads name
    #[arg(long, value_name = "PATTERN")]
    thread_name: Option<String>,
    /// What happens to a thread that wants more than its runtime; without it, it waits
    #[arg(long, value_name = "RULE")]
    overrun: Option<Overrun>,
    /// How long the container runs as ordinary threads before it has its reservation; without it not at all
    #[arg(long, value_name = "TIME")]
    startup: Option<Nanos>,
    /// The least that the runtime may be set to while the container runs, by `takt reserve tune`; without it the runtime
    #[arg(long, value_name = "TIME")]
    min_runtime: Option<Nanos>,
    /// The most; bandwidth is claimed for it. Without it the runtime
    #[arg(long, value_name = "TIME")]
    max_runtime: Option<Nanos>,
    /// Name of what is written
    #[arg(long, default_value = "reservation")]
    name: String,
    /// Namespace; without it the one that kubectl uses
    #[arg(long)]
    namespace: Option<String>,
    /// Device class, if the chart was installed with another name for it
    #[arg(long, value_name = "NAME", default_value = DRIVER)]
    class: String,
    /// Write a ResourceClaimTemplate instead of a ResourceClaim
    #[arg(long)]
    template: bool,
    /// Write a pod too, which runs this image with the reservation
    #[arg(long)]
    image: Option<String>,
    /// Memory of that pod's container: with as much CPU as it reserves it is a Guaranteed pod
    #[arg(
        long,
        value_name = "QUANTITY",
        default_value = "128Mi",
        requires = "image"
    )]
    memory: String,
    /// File to write; without it standard output
    #[arg(long, short, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    #[command(flatten)]
    form: Form,
}

/// Scheduling class inside a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// SCHED_DEADLINE: each thread has a reservation of its own
    Deadline,
    /// SCHED_FIFO inside a group that has the reservation
    Fifo,
    /// SCHED_RR inside a group that has the reservation
    Rr,
}

/// Which threads of a container get the reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Threads {
    /// The first thread of the first process; only for one core
    First,
    /// The oldest threads, one for each core
    FirstM,
    /// The oldest threads whose names match --thread-name
    Name,
    /// Those that ask through the socket in the container
    Ask,
}

/// What happens on an overrun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Overrun {
    /// The thread waits for its next period
    Throttle,
    /// It waits, and its process gets SIGXCPU
    Signal,
    /// It may use what other reservations leave unused
    Reclaim,
}

/// The text of a value as it is written on the command line and in the manifest alike.
fn word(value: impl ValueEnum) -> String {
    let possible = value.to_possible_value();
    possible.map_or_else(String::new, |value| value.get_name().to_owned())
}

impl Claim {
    pub fn run(self) -> Result<(), Failure> {
        self.validate()?;
        let mut documents = vec![self.claim()];
        documents.extend(self.image.as_deref().map(|image| self.pod(image)));
        if self.form.json {
            return match documents.as_slice() {
                [one] => print_json(one),
                all => print_json(&json!({"apiVersion": "v1", "kind": "List", "items": all})),
            };
        }
        let texts: Vec<String> = documents.iter().map(yaml).collect();
        write_text(&self.output, &texts.join("---\n"))
    }

    fn validate(&self) -> Result<(), Failure> {
        let wrong = |text: String| Err(Failure::Other(text));
        let (runtime, period) = (self.runtime, self.period);
        let least = Reservation::KERNEL_MIN_RUNTIME;
        if runtime < least {
            return wrong(format!(
                "runtime {runtime} is below the kernel's least of {least}: ask for more, or for the same share of a longer period"
            ));
        }
        if let Some(min) = self
            .min_runtime
            .filter(|min| !(least..=runtime).contains(min))
        {
            return wrong(format!(
                "--min-runtime {min} is not from the kernel's least, {least}, to the runtime, {runtime}: choose one within"
            ));
        }
        if let Some(max) = self.max_runtime.filter(|&max| max < runtime) {
            return wrong(format!(
                "--max-runtime {max} is below the runtime {runtime}: make it at least that"
            ));
        }
        let periods = Reservation::KERNEL_MIN_PERIOD..=Reservation::KERNEL_MAX_PERIOD;
        if !periods.contains(&period) {
            return wrong(format!(
                "period {period} is outside what the kernel takes, {} to {}: choose one within",
                periods.start(),
                periods.end()
            ));
        }
        let deadline = self.deadline.unwrap_or(period);
        if deadline > period {
            return wrong(format!(
                "deadline {deadline} is after the period's end, {period}: make it at most that"
            ));
        }
        let (most, whose) = match self.max_runtime {
            Some(max) => (max, "--max-runtime"),
            None => (runtime, "runtime"),
        };
        if most > deadline {
            let what = if self.deadline.is_some() {
                "deadline"
            } else {
                "period"
            };
            return wrong(format!(
                "{whose} {most} exceeds the {what} {deadline}: one core gives at most as much time as passes"
            ));
        }
        if self.threads == Some(Threads::First) && self.cores > 1 {
            return wrong(format!(
                "--threads first reserves for one thread, but there are {} cores: write first-m, or --cores 1",
                self.cores
            ));
        }
        if let Some(startup) = self.startup {
            if startup > MOST_STARTUP {
                return wrong(format!(
                    "startup {startup} is above {MOST_STARTUP}: a program that needs longer to begin should ask for its reservation (--threads ask)"
                ));
            }
            if self.threads == Some(Threads::Ask) {
                return wrong(format!(
                    "--startup {startup} has no effect with --threads ask: threads have their reservation when they ask"
                ));
            }
        }
        match (&self.thread_name, self.threads) {
            (Some(pattern), Some(Threads::Name)) => {
                let printable = pattern.bytes().all(|byte| (b' '..=b'~').contains(&byte));
                let length = (1..=64).contains(&pattern.len());
                if !length || !printable || pattern.contains('/') || !is_pattern(pattern) {
                    return wrong(format!(
                        "`{}` is no pattern for thread names: use 1 to 64 characters of ASCII, no slash, closed brackets and no lone \\, such as control-*",
                        pattern.escape_debug()
                    ));
                }
            }
            (None, Some(Threads::Name)) => {
                return wrong(
                    "--threads name needs a pattern: add --thread-name 'control-*'".to_owned(),
                );
            }
            (Some(_), _) => {
                return wrong(
                    "--thread-name has no effect without --threads name: add it".to_owned(),
                );
            }
            (None, _) => {}
        }
        if !is_label(&self.name) {
            return wrong(format!(
                "`{}` cannot be the name of a pod and its claim: use up to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit",
                self.name.escape_debug()
            ));
        }
        if let Some(namespace) = self.namespace.as_deref().filter(|name| !is_label(name)) {
            return wrong(format!(
                "`{}` cannot be a namespace: use up to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit",
                namespace.escape_debug()
            ));
        }
        if !self.class.split('.').all(is_label) || self.class.len() > 253 {
            return wrong(format!(
                "`{}` cannot be a device class: use labels of a-z, 0-9 and - with dots between them, such as {DRIVER}",
                self.class.escape_debug()
            ));
        }
        Ok(())
    }

    /// What each core must have left, in millionths: the density where there is a deadline.
    fn bandwidth(&self) -> u128 {
        let deadline = self.deadline.unwrap_or(self.period);
        let most = self.max_runtime.unwrap_or(self.runtime);
        (u128::from(most.get()) * 1_000_000).div_ceil(u128::from(deadline.get()))
    }

    fn metadata(&self) -> Value {
        let mut metadata = json!({"name": self.name});
        if let Some(namespace) = &self.namespace {
            metadata["namespace"] = json!(namespace);
        }
        metadata
    }

    fn claim(&self) -> Value {
        let mut exactly = json!({
            "deviceClassName": self.class,
            "capacity": {"requests": {"bandwidth": self.bandwidth().to_string()}},
        });
        if self.cores > 1 {
            exactly["count"] = json!(self.cores);
        }
        let mut parameters = json!({
            "apiVersion": PARAMETERS_VERSION,
            "kind": PARAMETERS_KIND,
            "runtime": self.runtime.to_string(),
            "period": self.period.to_string(),
        });
        if let Some(deadline) = self.deadline {
            parameters["deadline"] = json!(deadline.to_string());
        }
        if let Some(policy) = self.policy {
            parameters["policy"] = json!(word(policy));
        }
        if let Some(threads) = self.threads {
            parameters["threads"] = json!({"select": word(threads)});
            if let Some(pattern) = &self.thread_name {
                parameters["threads"]["name"] = json!(pattern);
            }
        }
        if let Some(overrun) = self.overrun {
            parameters["overrun"] = json!(word(overrun));
        }
        if let Some(startup) = self.startup {
            parameters["startup"] = json!(startup.to_string());
        }
        for (field, value) in [
            ("minRuntime", self.min_runtime),
            ("maxRuntime", self.max_runtime),
        ] {
            if let Some(value) = value {
                parameters[field] = json!(value.to_string());
            }
        }
        let spec = json!({"devices": {
            "requests": [{"name": "cpu", "exactly": exactly}],
            "config": [{"requests": ["cpu"], "opaque": {"driver": DRIVER, "parameters": parameters}}],
        }});
        let (kind, spec) = match self.template {
            true => ("ResourceClaimTemplate", json!({"spec": spec})),
            false => ("ResourceClaim", spec),
        };
        json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": kind,
            "metadata": self.metadata(),
            "spec": spec,
        })
    }

    fn pod(&self, image: &str) -> Value {
        // What is reserved is requested, too: the scheduler counts the two apart.
        let milli = (self.bandwidth() * u128::from(self.cores)).div_ceil(1_000);
        let needs = json!({"cpu": format!("{milli}m"), "memory": self.memory});
        let source = match self.template {
            true => "resourceClaimTemplateName",
            false => "resourceClaimName",
        };
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.metadata(),
            "spec": {
                "resourceClaims": [{"name": "reservation", source: self.name}],
                "containers": [{
                    "name": self.name,
                    "image": image,
                    "resources": {"claims": [{"name": "reservation"}], "requests": needs, "limits": needs},
                }],
            },
        })
    }
}

/// Whether the node takes it as a shell pattern: nothing is escaped at the end, and each bracket has
/// members and is closed.
fn is_pattern(text: &str) -> bool {
    let mut characters = text.chars();
    let mut members = None;
    while let Some(character) = characters.next() {
        match (character, members) {
            ('\\', _) => {
                if characters.next().is_none() {
                    return false;
                }
                members = members.map(|count| count + 1);
            }
            ('[', None) => {
                members = Some(0);
                if characters.as_str().starts_with('^') {
                    characters.next();
                }
            }
            (']', Some(0)) => return false,
            (']', Some(_)) => members = None,
            ('-', Some(0)) => return false,
            ('-', Some(_)) if characters.as_str().starts_with([']', '-']) => return false,
            (_, Some(count)) => members = Some(count + 1),
            (_, None) => {}
        }
    }
    members.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_those_that_the_node_takes() {
        for good in ["control-*", "a[b-d]?", "[^x]*", "\\[", "[\\]a]", "]", "-"] {
            assert!(is_pattern(good), "{good}");
        }
        for bad in ["[a", "a\\", "[]", "[^]", "[-a]", "[a-]", "[a\\"] {
            assert!(!is_pattern(bad), "{bad}");
        }
    }
}
