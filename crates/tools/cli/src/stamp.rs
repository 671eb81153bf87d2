//! `takt stamp`.

use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use takt_health::pattern::{Pattern, Tuple};
use takt_stamp_tc::{Counters, Stamper};

use crate::failure::Failure;
use crate::output::{Form, print, print_json};
use crate::signals::{readable_at_signal, tell_ready};

const HELP: &str = "\
`takt monitor` at the other end then tells one-way delay, loss and order of any flow, whatever it
carries. Both clocks need to be synchronised (PTP).

The time goes behind the IP packet, 18 bytes that are no part of it: who receives the packet has it
as it was sent, and needs nothing. Switches pass them on; routers, tunnels and Linux bridges with
bridge-netfilter (usual on Kubernetes nodes) do not: watch in front of the first one. Not stamped, and
counted: what is longer than the MTU with it, fragments, and what the device or the kernel cuts into
several packets (segmentation offload, as of most TCP). Under a queueing discipline that holds packets
(etf, taprio, netem) the wait counts as delay. What leaves past the kernel (AF_XDP, DPDK) does not
come by here: `takt monitor --node` has what Takt sends so.

It takes Linux 6.6. SIGINT ends it, and the stamps; so does any other end of this process.

Examples:
  takt stamp -i eth0 'udp * > 10.0.0.2:5004'
  takt stamp -i eth0 'udp * > *' --for 60s --json";

/// Puts the time behind packets of others, for who watches them at the other end.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Stamp {
    /// The interface by which they leave
    #[arg(short, long, value_name = "INTERFACE")]
    interface: String,
    /// Which ones: \"udp 10.0.0.1:* > 10.0.0.2:5004\", \"ip * > 10.0.0.2\", or \"*\" for all IP packets
    #[arg(value_name = "FLOWS", required = true, value_parser = flows)]
    flows: Vec<Tuple>,
    /// End after this time
    #[arg(long = "for", value_name = "TIME", value_parser = crate::time::parse)]
    lasts: Option<Duration>,
    #[command(flatten)]
    form: Form,
}

fn flows(text: &str) -> Result<Tuple, String> {
    let pattern: Pattern = text.parse().map_err(|error| format!("{error}"))?;
    pattern.tuple().ok_or_else(|| {
        "only IP packets are stamped, for IP says where they end: write \"udp * > 10.0.0.2:5004\", or \"*\" for all".into()
    })
}

/// What became of the packets.
#[derive(Debug, Serialize)]
struct Account {
    interface: String,
    #[serde(flatten)]
    counters: Counters,
}

impl Stamp {
    pub fn run(self) -> Result<(), Failure> {
        let failed = |error: takt_stamp_tc::Error| Failure::Other(error.to_string());
        let stop = readable_at_signal()?;
        let stamper = Stamper::attach(&self.interface, &self.flows).map_err(failed)?;
        eprintln!(
            "takt: packets that leave {} are stamped; SIGINT ends it",
            self.interface
        );
        tell_ready();
        let end = self.lasts.and_then(|time| Instant::now().checked_add(time));
        let gone = loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break false;
            }
            // Now and then, to see whether the interface is still there.
            let wait = left.map_or(LOOK, |left| left.min(LOOK));
            let wait = Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: wait.subsec_nanos().into(),
            };
            let mut sources = [PollFd::new(&stop, PollFlags::IN)];
            match poll(&mut sources, Some(&wait)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break false,
                Err(error) => return Err(Failure::io("wait")(error.into())),
            }
            if !stamper.is_there() {
                break true;
            }
        };
        let account = Account {
            interface: self.interface,
            counters: stamper.counters().map_err(failed)?,
        };
        match self.form.json {
            true => print_json(&account)?,
            false => print(&account.text())?,
        }
        match gone {
            true => Err(Failure::Other(format!(
                "{} is gone, and the stamps with it: start this again when there is such an interface",
                account.interface
            ))),
            false => Ok(()),
        }
    }
}

/// How often the interface is looked for.
const LOOK: Duration = Duration::from_secs(1);

impl Account {
    fn text(&self) -> String {
        let counters = &self.counters;
        let mut text = format!("{}: {} stamped", self.interface, counters.stamped);
        for (count, what) in [
            (counters.segmented, "not: segmented later"),
            (counters.fragmented, "not: fragments"),
            (counters.too_long, "not: longer than the MTU with a stamp"),
            (counters.padded, "not: something is behind the IP packet"),
            (counters.sealed, "not: SCTP or ESP"),
            (counters.failed, "not: the kernel had no memory"),
        ] {
            if count > 0 {
                text.push_str(&format!("; {count} {what}"));
            }
        }
        text + "\n"
    }
}
