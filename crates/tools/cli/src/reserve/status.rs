//! `takt reserve status`: who holds which reservation of a cluster, what is free, and where a claim would fit.
//!
//! The cluster is asked through `kubectl`, which knows how to reach it and who one is.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde_json::json;
use takt_reserve::Nanos;

use super::cluster::{Cluster, Fit, Need, Share};
use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};

const HELP: &str = "\
Bandwidths are parts per million of a core, as nodes publish and claims request them. Where a claim fits
is what its node's cores have left; selectors and constraints of claims are the scheduler's own and not
looked at. A claim that fits nowhere is told each node's reason, which begins with a code:
TooFewCores, DensityExceeded, BandwidthExceeded. With --runtime and --period the exit code is 6 if no
node has room.

Examples:
  takt reserve status
  takt reserve status --runtime 3ms --period 10ms --cores 2
  takt reserve status --json | jq '.nodes[].cores[].free'
  kubectl get resourceslices,resourceclaims -A -o json | takt reserve status --from -";

/// Says who holds which reservation of a cluster, what is free, and where a claim would fit.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Status {
    /// Say where a claim for so much CPU time would fit
    #[arg(long, value_name = "TIME", requires = "period")]
    runtime: Option<Nanos>,
    /// How often that claim's runtime comes back
    #[arg(long, value_name = "TIME", requires = "runtime")]
    period: Option<Nanos>,
    /// How long after the start of a period the runtime has been given; without it the period
    #[arg(long, value_name = "TIME", requires = "runtime")]
    deadline: Option<Nanos>,
    /// On how many cores
    #[arg(long, value_name = "N", default_value_t = 1, requires = "runtime", value_parser = clap::value_parser!(u64).range(1..=32))]
    cores: u64,
    /// The program that asks the cluster
    #[arg(long, value_name = "PROGRAM", default_value = "kubectl")]
    kubectl: PathBuf,
    /// Read what kubectl said from a file instead; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "kubectl")]
    from: Option<PathBuf>,
    #[command(flatten)]
    form: Form,
}

impl Status {
    pub fn run(self) -> Result<(), Failure> {
        let wanted = self.wanted()?;
        let text = match &self.from {
            Some(file) => read(file)?,
            None => ask(&self.kubectl)?,
        };
        let cluster = Cluster::read(&text).map_err(|error| Failure::Other(error.to_string()))?;
        let fits = wanted.map(|need| cluster.fit(&[need]));
        if self.form.json {
            let pending: Vec<_> = cluster
                .pending
                .iter()
                .map(|claim| json!({"namespace": claim.namespace, "claim": claim.claim, "needs": claim.needs, "fits": cluster.fit(&claim.needs)}))
                .collect();
            let mut all = json!({"nodes": cluster.nodes, "reservations": cluster.reservations, "pending": pending});
            if let Some(fits) = &fits {
                all["fits"] = json!(fits);
            }
            print_json(&all)?;
        } else {
            print(&page(&cluster, fits.as_deref()))?;
        }
        match fits {
            Some(fits) if !fits.iter().any(fits_there) => Err(Failure::Insufficient(
                "no node has room for that claim".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// The claim that is asked about.
    fn wanted(&self) -> Result<Option<Need>, Failure> {
        let (Some(runtime), Some(period)) = (self.runtime, self.period) else {
            return Ok(None);
        };
        let deadline = self.deadline.unwrap_or(period);
        if deadline > period || runtime > deadline || runtime.get() == 0 {
            return Err(Failure::Other(format!(
                "runtime {runtime}, deadline {deadline} and period {period} are not in this order: the runtime is above 0 and at most the deadline, the deadline at most the period"
            )));
        }
        let bandwidth =
            (u128::from(runtime.get()) * 1_000_000).div_ceil(u128::from(deadline.get()));
        Ok(Some(Need {
            request: "cpu".to_owned(),
            alternatives: vec![Share {
                cores: self.cores,
                bandwidth: u64::try_from(bandwidth).unwrap_or(u64::MAX),
            }],
        }))
    }
}

fn fits_there(fit: &Fit) -> bool {
    fit.code.is_none()
}

fn read(file: &Path) -> Result<String, Failure> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .map_err(Failure::io("read standard input"))?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
        .map_err(|error| Failure::Other(format!("cannot read {}: {error}", file.display())))
}

fn ask(kubectl: &Path) -> Result<String, Failure> {
    let answer = Command::new(kubectl)
        .args(["get", "resourceslices,resourceclaims", "--all-namespaces"])
        .args(["--output", "json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| {
            Failure::Other(format!(
                "cannot run {}: {error}: name it with --kubectl, or bring what it says with --from",
                kubectl.display()
            ))
        })?;
    if !answer.status.success() {
        let said = String::from_utf8_lossy(&answer.stderr);
        // It repeats itself: the last line is what it comes to.
        let said = said.trim().lines().next_back().unwrap_or("nothing");
        return Err(Failure::Other(format!(
            "cannot ask the cluster: {} says: {}: `kubectl cluster-info` shows whether a cluster answers and KUBECONFIG names it; or bring what it says with --from",
            kubectl.display(),
            said.escape_debug()
        )));
    }
    String::from_utf8(answer.stdout)
        .map_err(|_| Failure::Other(format!("{} does not write UTF-8", kubectl.display())))
}

fn page(cluster: &Cluster, fits: Option<&[Fit]>) -> String {
    if cluster.nodes.is_empty() {
        return "no node offers cores: is takt-node installed and ready?\n".to_owned();
    }
    let mut parts = vec![cores(cluster)];
    if !cluster.reservations.is_empty() {
        parts.push(reservations(cluster));
    }
    let pending = cluster.pending.iter().map(|claim| {
        let title = format!("{}/{} is pending: it", claim.namespace, claim.claim);
        places(&title, &cluster.fit(&claim.needs))
    });
    parts.extend(pending);
    parts.extend(fits.map(|fits| places("that claim", fits)));
    parts.join("\n")
}

fn cores(cluster: &Cluster) -> String {
    let columns = [
        ("NODE", Align::Left),
        ("BACKEND", Align::Left),
        ("CORE", Align::Left),
        ("CAPACITY", Align::Right),
        ("RESERVED", Align::Right),
        ("FREE", Align::Right),
        ("AT MOST", Align::Right),
    ];
    let rows = cluster.nodes.iter().flat_map(|node| {
        node.cores.iter().map(|core| {
            vec![
                shown(&node.name),
                shown(&node.backend),
                shown(&core.device),
                core.capacity.to_string(),
                core.reserved.to_string(),
                core.free.to_string(),
                core.most.min(core.free).to_string(),
            ]
        })
    });
    table(&columns, rows.collect())
}

fn reservations(cluster: &Cluster) -> String {
    let columns = [
        ("CLAIM", Align::Left),
        ("REQUEST", Align::Left),
        ("POD", Align::Left),
        ("NODE", Align::Left),
        ("CORES", Align::Left),
        ("RUNTIME", Align::Right),
        ("PERIOD", Align::Right),
        ("STATE", Align::Left),
        ("THREADS", Align::Left),
    ];
    let rows = cluster.reservations.iter().map(|of| {
        vec![
            shown(&format!("{}/{}", of.namespace, of.claim)),
            shown(&of.request),
            shown(&of.pods.join(",")),
            shown(&of.node),
            shown(&of.devices.join(",")),
            shown(&of.runtime),
            shown(&of.period),
            shown(&of.state),
            shown(&of.threads.join(",")),
        ]
    });
    table(&columns, rows.collect())
}

fn places(what: &str, fits: &[Fit]) -> String {
    fits.iter()
        .map(|fit| match (&fit.code, &fit.why) {
            (Some(code), Some(why)) => {
                format!("{what} does not fit {}: {code}: {why}\n", shown(&fit.node))
            }
            _ => format!(
                "{what} fits {}: {}\n",
                shown(&fit.node),
                shown(&fit.devices.join(","))
            ),
        })
        .collect()
}

/// Names are others' to choose.
fn shown(text: &str) -> String {
    text.escape_debug().to_string()
}
