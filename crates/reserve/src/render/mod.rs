//! Results for people: tables for a terminal and a picture of supply and demand.

mod curve;
mod svg;
mod table;

pub use svg::{supply_and_demand, supply_and_demand_of};
pub use table::{estimate_table, per_task_table, plan_table, verdict_table};
