//! Results for people: tables for a terminal, and supply and demand in characters or as a picture.

mod curve;
mod svg;
mod table;
mod terminal;

pub use svg::{supply_and_demand, supply_and_demand_of};
pub use table::{estimate_table, packing_table, per_task_table, plan_table, verdict_table};
pub use terminal::{ChartStyle, chart, chart_of};
