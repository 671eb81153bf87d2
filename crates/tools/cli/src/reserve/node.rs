//! The node that a reservation is for: its cores and what else they hold.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Serialize;
use takt_reserve::admission::{Server, is_schedulable, tardiness};
use takt_reserve::packing::{Fit, Packing, Request, pack};
use takt_reserve::render::packing_table;
use takt_reserve::{Bandwidth, Nanos, Reservation};

use crate::failure::Failure;

/// How a node enforces reservations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// SCHED_DEADLINE by global EDF on all cores of the node
    Deadline,
    /// SCHED_DEADLINE on cores set apart, each with an admission of its own
    DeadlinePartition,
}

/// Onto which of the cores that have room a reservation goes, the widest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// The first one
    #[value(name = "first-fit")]
    First,
    /// The fullest, so that others stay free for wide ones
    #[value(name = "best-fit")]
    Best,
    /// The emptiest, so that all have something left
    #[value(name = "worst-fit")]
    Worst,
}

impl From<Order> for Fit {
    fn from(order: Order) -> Self {
        match order {
            Order::First => Self::First,
            Order::Best => Self::Best,
            Order::Worst => Self::Worst,
        }
    }
}

/// The node that the reservation has to find room on.
#[derive(Debug, Args)]
pub struct Node {
    /// Say whether a node of so many cores keeps the reservation beside --neighbour
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Reservation::MAX_CORES)))]
    node_cores: Option<u32>,
    /// A reservation that the node has already, RUNTIME/PERIOD or RUNTIME/PERIOD/DEADLINE
    #[arg(
        long,
        value_name = "Q/P",
        value_delimiter = ',',
        requires = "node_cores"
    )]
    neighbour: Vec<Neighbour>,
    /// How the node enforces
    #[arg(
        long,
        value_name = "NAME",
        default_value = "deadline",
        requires = "node_cores"
    )]
    backend: Backend,
    /// The most of each core that the node gives away, with cores set apart
    #[arg(
        long,
        value_name = "PERCENT",
        default_value = "90%",
        requires = "node_cores"
    )]
    node_bound: super::source::Percent,
    /// With cores set apart: which of them a reservation goes to, the widest first
    #[arg(
        long,
        value_name = "RULE",
        default_value = "first-fit",
        requires = "node_cores"
    )]
    order: Order,
}

/// What is asked of a node, and how people know it.
pub struct Named {
    pub name: String,
    pub request: Request,
}

#[derive(Clone, Debug)]
struct Neighbour {
    server: Server,
    written: String,
}

impl FromStr for Neighbour {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let malformed =
            || format!("`{text}` is no reservation: write RUNTIME/PERIOD, as in 4.5ms/10ms");
        let times: Vec<Nanos> = text
            .split('/')
            .map(|time| time.parse().map_err(|_| malformed()))
            .collect::<Result<_, _>>()?;
        let (runtime, period, deadline) = match times[..] {
            [runtime, period] => (runtime, period, None),
            [runtime, period, deadline] => (runtime, period, Some(deadline)),
            _ => return Err(malformed()),
        };
        if deadline.is_some_and(|deadline| deadline < runtime || deadline > period) {
            return Err(format!(
                "the deadline of `{text}` is not from its runtime to its period"
            ));
        }
        let reservation =
            Reservation::new(runtime, period, 1).map_err(|error| format!("`{text}`: {error}"))?;
        Ok(Self {
            server: Server::new(reservation, deadline),
            written: text.to_owned(),
        })
    }
}

/// What the node does with all of them.
#[derive(Debug, Serialize)]
pub struct OnNode {
    /// Whether every runtime is given by its deadline.
    guaranteed: bool,
    /// How late one may be, where global EDF has a bound.
    #[serde(skip_serializing_if = "Option::is_none")]
    tardiness: Option<Nanos>,
    /// Who is on which core, where they are set apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    packing: Option<Packed>,
    #[serde(skip)]
    told: String,
}

/// A packing by names.
#[derive(Debug, Serialize)]
struct Packed {
    order: Fit,
    cores: Vec<OnCore>,
    /// Whom it has no core for, once for each thread.
    left_out: Vec<String>,
    /// Whether others may have room for all of them.
    another_may_exist: bool,
    #[serde(skip)]
    table: String,
}

#[derive(Debug, Serialize)]
struct OnCore {
    reservations: Vec<String>,
    used: u64,
    left: u64,
}

impl Packed {
    fn new(packing: Packing, order: Fit, names: &[String]) -> Self {
        let named = |all: &[usize]| all.iter().map(|&one| names[one].clone()).collect();
        let on_core = |core: &takt_reserve::packing::PackedCore| OnCore {
            reservations: named(&core.requests),
            used: core.used,
            left: core.left,
        };
        Self {
            order,
            cores: packing.cores.iter().map(on_core).collect(),
            left_out: named(&packing.left_out),
            another_may_exist: packing.another_may_exist,
            table: packing_table(&packing, names),
        }
    }
}

impl Node {
    /// What the node does with what is asked of it beside its neighbours; `None` if no node was named.
    pub fn holds(&self, asked: Vec<Named>) -> Option<OnNode> {
        let cores = self.node_cores?;
        let neighbours = self.neighbour.iter().map(|neighbour| Named {
            name: format!("neighbour {}", neighbour.written),
            request: Request {
                server: neighbour.server,
                threads: 1,
            },
        });
        let asked: Vec<Named> = asked.into_iter().chain(neighbours).collect();
        let of_each = |one: &Named| vec![one.request.server; one.request.threads as usize];
        let all: Vec<Server> = asked.iter().flat_map(of_each).collect();
        let on = format!("{} reservations on {cores} cores", all.len());
        if self.backend == Backend::DeadlinePartition {
            return Some(self.packed(cores, &on, asked));
        }
        let guaranteed = is_schedulable(cores, &all);
        let tardiness = tardiness(cores, &all);
        let told = match (guaranteed, tardiness) {
            (true, _) => format!("{on} under global EDF: guaranteed"),
            (false, Some(late)) => format!(
                "{on} under global EDF: not guaranteed, a runtime may be given up to {late} late (admission: soft)"
            ),
            (false, None) => {
                format!("{on} under global EDF: not guaranteed, and no bound is known")
            }
        };
        Some(OnNode {
            guaranteed,
            tardiness,
            packing: None,
            told,
        })
    }

    fn packed(&self, cores: u32, on: &str, asked: Vec<Named>) -> OnNode {
        let bound = Bandwidth::from_ppm(self.node_bound.0);
        let requests: Vec<Request> = asked.iter().map(|one| one.request).collect();
        let names: Vec<String> = asked.into_iter().map(|one| one.name).collect();
        let packing = pack(cores, bound, &requests, self.order.into());
        let guaranteed = packing.left_out.is_empty();
        let packing = Packed::new(packing, self.order.into(), &names);
        let told = match (guaranteed, packing.another_may_exist) {
            (true, _) => format!("{on} set apart: guaranteed, each core within {bound}"),
            (false, may) => format!(
                "{on} set apart: no room within {bound} of a core for {}; {}",
                packing.left_out.join(", "),
                match may {
                    true => "another packing may have it: try another --order",
                    false => "no packing has it: take more cores, or less of each",
                }
            ),
        };
        OnNode {
            guaranteed,
            tardiness: None,
            packing: Some(packing),
            told,
        }
    }
}

impl OnNode {
    /// In one line, after the packing where there is one.
    pub fn shown(&self) -> String {
        match &self.packing {
            Some(packing) => format!("\n{}\n{}", packing.table, self.told),
            None => self.told.clone(),
        }
    }

    /// An error unless all are guaranteed.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self.guaranteed {
            true => Ok(()),
            false => Err(Failure::Insufficient(self.told.clone())),
        }
    }
}

/// One reservation for all tasks, as it is asked of a node.
pub fn for_all(reservation: &Reservation) -> Vec<Named> {
    let request = Request {
        server: Server::new(*reservation, None),
        threads: reservation.cores(),
    };
    vec![Named {
        name: "all tasks".to_owned(),
        request,
    }]
}
