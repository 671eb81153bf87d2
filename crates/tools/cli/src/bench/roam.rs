//! `takt demo roam`: streams that change their technology while they run (naaas-thesis-2024, 3.2 and 5.1.3).

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use takt_bench::experiment::{Experiment, Round, Variant};
use takt_bench::takt::Takt;
use takt_bench::takt::roam::{Fate, Roaming};
use takt_datapath::plugin::{DIRECTORY, file_name};
use takt_lab::LabConfig;

use super::common::{BenchError, Common, Measurement, TwoCores, hosts, seconds};

/// Technologies of the runtime itself.
const BUILT_IN: [&str; 2] = ["udp", "xdp"];
const PLUGINS: [&str; 2] = ["dpdk", "fabric"];

/// Streams that move from one technology to the next while their messages flow
///
/// Two nodes on two hosts of this machine have kernel UDP, AF_XDP, DPDK (shared memory, memif) and libfabric (TCP). Two
/// programs exchange 1000 messages a second by a reliable stream, and as many by one whose messages are sent once; the
/// programs never learn of what is done: the mapping of the node is changed while they run (`takt reload`), so that the
/// streams go from kernel UDP to AF_XDP, DPDK, libfabric and back. Says for each how soon the streams were there, how long
/// messages took, and what the node's ports sent; and in the end whether any message was lost, doubled or out of order.
/// Exits with 1 if one of the reliable stream was, if one is not accounted for, or if the streams did not move. Needs root.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  sudo takt demo roam
  sudo takt demo roam --over udp,xdp,udp --seconds 10
  sudo takt demo roam --plugins target/datapaths/release")]
pub struct Roam {
    /// Technologies to go over, in this order; without it udp,xdp,dpdk,fabric,udp, and without those whose plugin is not there
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = PossibleValuesParser::new(BUILT_IN.into_iter().chain(PLUGINS)))]
    over: Vec<String>,
    /// Seconds to stay on each
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    seconds: f64,
    /// Directory of plugins; only root may write there
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    plugins: PathBuf,
    /// Folder for the report; without it ./out/bench-roam-<date>
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the report as JSON instead of tables
    #[arg(long)]
    json: bool,
}

const METHOD: &str = "\
Two nodes on two hosts in network namespaces, joined by a cable. Messages of 64 B, 1000 a second, on a reliable stream and on one whose messages \
are sent once. The sending node's mapping is changed while they flow. Latencies are of the reliable stream, from before the message is given to the \
library until the reader has it, by one clock; the silence is the longest time between two of its messages, the move included. What a port has sent is the node's count, \
with acknowledgements and what was sent again.";

impl Roam {
    /// Moves the streams, prints and reports.
    pub fn run(self) -> Result<(), BenchError> {
        let stay = seconds(self.seconds)?;
        let journey = self.journey()?;
        let cores = TwoCores::choose()?;
        let takt = Takt::this_program()?;
        let common = Common::brief(1, self.out, self.json, false);
        let lab = hosts(&LabConfig::default())?;
        let pair = cores.pair(lab.host(0), lab.host(1));
        let title = "Streams that move from one technology to the next";
        let mut measurement = Measurement::begin(&common, "roam", title, METHOD)?;
        let plugins = std::path::absolute(&self.plugins).unwrap_or(self.plugins);
        let roaming = Roaming::start(&takt, &pair, &journey, &plugins)?;
        let stays = journey.iter().enumerate().map(|(at, datapath)| {
            let roaming = &roaming;
            Variant::new(format!("{}. {datapath}", at + 1), move |_: &Round| {
                Ok(roaming.stay(datapath, stay)?)
            })
        });
        let outcome = measurement.run(Experiment {
            name: "Where the streams were".into(),
            setting: format!("{} s each", self.seconds),
            method: String::new(),
            rounds: 1,
            baseline: None,
            variants: stays.collect(),
        })?;
        let mut stays = outcome.variants.iter();
        let reached_all = stays.all(|stay| stay.failures().next().is_none());
        let [reliable, once] = roaming.finish()?;
        for (name, fate) in [("Reliable", reliable), ("Sent once", once)] {
            let Fate {
                sent,
                received,
                counted,
                disordered,
            } = fate;
            measurement.find(&format!(
                "{name}: {sent} messages sent, {received} received, {counted} counted as lost, {} missing, {disordered} out of order or twice.",
                fate.missing()
            ));
        }
        measurement.finish()?;
        let kept = reliable.received == reliable.sent && reliable.disordered == 0;
        if !reached_all {
            return Err(BenchError::Promise(
                "the streams have not been everywhere: the report says why",
            ));
        }
        match kept && once.missing() == 0 {
            true => Ok(()),
            false => Err(BenchError::Promise(
                "messages of the reliable stream were lost or out of order, or some are not accounted for",
            )),
        }
    }

    /// Where to go, or why that is not possible.
    fn journey(&self) -> Result<Vec<String>, BenchError> {
        let file = |name: &str| self.plugins.join(file_name(name));
        let is_there = |name: &str| BUILT_IN.contains(&name) || file(name).exists();
        if self.over.is_empty() {
            let (there, missing): (Vec<&str>, Vec<&str>) =
                PLUGINS.into_iter().partition(|name| is_there(name));
            for name in missing {
                eprintln!(
                    "{name} is left out: there is no {} (docs/reference/datapath-{name}.md says how it is made)",
                    file(name).display()
                );
            }
            let all = BUILT_IN.into_iter().chain(there).chain(["udp"]);
            return Ok(all.map(str::to_owned).collect());
        }
        match self.over.iter().find(|name| !is_there(name)) {
            Some(name) => Err(BenchError::NoPlugin(format!(
                "there is no {}: build it (`make datapaths` in a source tree puts it into target/datapaths/release), name its directory by \
                 --plugins, or leave {name} out of --over",
                file(name).display()
            ))),
            None => Ok(self.over.clone()),
        }
    }
}
