//! `[[schedule]]`: schedules that are in force from the start, read from files of any form.

use std::path::Path;

use takt_runtime::Config;
use takt_runtime::config::LinkSchedule;
use takt_runtime::control::admission;
use takt_schedule::GateList;
use takt_schedule::form::{self, Form, MAX_LENGTH};
use takt_schedule::selection::SelectionError;

use super::document::{Document, Fault, way};
use super::file::{File, Schedule};

/// Reads them all.
///
/// # Errors
/// The first fault, at its place in the configuration.
pub fn read(file: &File, document: &Document<'_>) -> Result<Vec<LinkSchedule>, Box<Fault>> {
    let mut schedules: Vec<LinkSchedule> = Vec::new();
    for (index, section) in file.schedule.iter().enumerate() {
        if schedules.iter().any(|s| s.datapath == section.datapath) {
            return Err(Box::new(document.fault(
                way!["schedule", index, "datapath"],
                "this datapath has a schedule already: leave one of them out",
            )));
        }
        match one(&section.file) {
            Ok((schedule, classes)) => {
                let schedule = LinkSchedule {
                    vlan: section.vlan,
                    classes,
                    other_traffic: section.other_traffic.0,
                    ..LinkSchedule::new(&section.datapath, schedule, section.rate)
                };
                let selection = &schedule.schedule.selection;
                if let Err(error) = takt_schedule::selection::check(selection, &schedule.link()) {
                    let way = match error {
                        SelectionError::NoRate(_) => way!["schedule", index, "rate"],
                        _ => way!["schedule", index, "file"],
                    };
                    return Err(Box::new(document.fault(way, error.to_string())));
                }
                if let Some(cut) =
                    takt_schedule::check::cut(&schedule.schedule, &schedule.link()).first()
                {
                    let way = way!["schedule", index, "file"];
                    return Err(Box::new(document.fault(way, cut.message.clone())));
                }
                one_lane(file, section, index, document)?;
                schedules.push(schedule);
            }
            Err(problem) => {
                return Err(Box::new(
                    document.fault(way!["schedule", index, "file"], problem),
                ));
            }
        }
    }
    Ok(schedules)
}

/// Checks the declared streams of all listeners against all schedules. What a device takes of each window is known only
/// when a node starts, and checked again then.
///
/// # Errors
/// The first stream that does not fit.
pub fn admit(config: &Config, document: &Document<'_>) -> Result<(), Box<Fault>> {
    for schedule in &config.schedules {
        let tenants = config.listeners.iter().map(|listener| &listener.policy);
        let Err(misfit) = admission::check(schedule, 0, None, tenants) else {
            continue;
        };
        let (listener, stream) = misfit.first;
        let way = way!["listener", listener, "stream", stream];
        return Err(Box::new(document.fault(way, misfit.to_string())));
    }
    Ok(())
}

/// Gates hold for a link as a whole, so one lane carries it.
fn one_lane(
    file: &File,
    section: &Schedule,
    index: usize,
    document: &Document<'_>,
) -> Result<(), Box<Fault>> {
    let all = file.lane.as_ref().map_or(1, Vec::len);
    let name = &section.datapath;
    let given = match (name.as_str(), &file.datapath.xdp) {
        ("udp", _) => file.datapath.udp.lanes.as_ref(),
        (_, xdp) => xdp.as_ref().and_then(|xdp| xdp.lanes.as_ref()),
    };
    let carriers = given.map_or(all, Vec::len);
    if carriers == 1 {
        return Ok(());
    }
    Err(Box::new(document.fault(
        way!["schedule", index, "datapath"],
        format!(
            "{carriers} lanes carry datapath `{name}`, each with a queue of its own, and gates must hold for the link as a whole: give it to one (`lanes = [0]` in [datapath.{name}])"
        ),
    )))
}

fn one(path: &Path) -> Result<(takt_schedule::Schedule, takt_schedule::ClassTable), String> {
    let about = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if !about.is_file() || about.len() > MAX_LENGTH as u64 {
        return Err(format!("no file of at most {MAX_LENGTH} octets"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"))?;
    let parsed = form::read(Form::of(&text), &text, None).map_err(|error| error.to_string())?;
    let classes = parsed
        .document
        .installable()
        .map_err(|refused| refused.join("; "))?;
    let schedule = parsed.document.schedule;
    if !schedule.enabled {
        return Err("the schedule says that gates are disabled: leave the section out".into());
    }
    GateList::new(&schedule)
        .map_err(|error| format!("{error} (`takt schedule check` explains every mistake)"))?;
    Ok((schedule, classes))
}
