//! The node that a reservation is for: its cores and what else they hold.

use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde::Serialize;
use takt_reserve::admission::{Server, fits_partitioned, is_schedulable, tardiness};
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
}

#[derive(Clone, Copy, Debug)]
struct Neighbour(Server);

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
        Ok(Self(Server::new(reservation, deadline)))
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
    #[serde(skip)]
    told: String,
}

impl Node {
    /// What the node does with `servers` and its neighbours; `None` if no node was named.
    pub fn holds(&self, servers: &[Server]) -> Option<OnNode> {
        let cores = self.node_cores?;
        let all: Vec<Server> = servers
            .iter()
            .copied()
            .chain(self.neighbour.iter().map(|neighbour| neighbour.0))
            .collect();
        let on = format!("{} reservations on {cores} cores", all.len());
        if self.backend == Backend::DeadlinePartition {
            let bound = Bandwidth::from_ppm(self.node_bound.0);
            let guaranteed = fits_partitioned(cores, bound, &all);
            let told = match guaranteed {
                true => format!("{on} set apart: guaranteed, each core within {bound}"),
                false => format!(
                    "{on} set apart: no room, first fit finds no core within {bound} for one of them"
                ),
            };
            return Some(OnNode {
                guaranteed,
                tardiness: None,
                told,
            });
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
            told,
        })
    }
}

impl OnNode {
    /// In one line.
    pub fn told(&self) -> &str {
        &self.told
    }

    /// An error unless all are guaranteed.
    pub fn verdict(&self) -> Result<(), Failure> {
        match self.guaranteed {
            true => Ok(()),
            false => Err(Failure::Insufficient(self.told.clone())),
        }
    }
}

/// The reservation of each of a request's threads.
pub fn servers(reservation: &Reservation) -> Vec<Server> {
    vec![Server::new(*reservation, None); reservation.cores() as usize]
}
