//! What a queue pair is for: `kernel`, or `class=CLASS[,cycle=CYCLE[+OFFSET]][,lead=TIME][,socket=PATH]`.

use std::path::PathBuf;
use std::str::FromStr;

use takt::grid::{self, When};

use crate::ClassFrom;

/// What a queue pair is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The host's kernel, whatever is sent.
    Kernel,
    /// The runtime, for what it sends.
    Runtime(Served),
}

/// How frames of a queue are given to the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Their class.
    pub class: ClassFrom,
    /// When they leave.
    pub when: When,
    /// The listener that they are of; `None`: as other applications find the runtime.
    pub socket: Option<PathBuf>,
}

/// What is wrong with the text of a queue, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the queue {queue:?} {what}: a queue is `kernel`, or class=CLASS[,cycle=CYCLE[+OFFSET]][,lead=TIME][,socket=PATH], as in \
     \"class=5,cycle=1ms+250us\"; CLASS is 0 to 7, or `frame` for the priority of each frame's VLAN tag or its DSCP"
)]
pub struct BadQueue {
    queue: String,
    what: String,
}

impl FromStr for Queue {
    type Err = BadQueue;

    fn from_str(text: &str) -> Result<Self, BadQueue> {
        parse(text).map_err(|what| BadQueue {
            queue: text.to_owned(),
            what,
        })
    }
}

fn parse(text: &str) -> Result<Queue, String> {
    if text == "kernel" {
        return Ok(Queue::Kernel);
    }
    let (mut class, mut cycle, mut lead, mut socket) = (None, None, None, None);
    for part in text.split(',') {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("has {part:?}, which is no KEY=VALUE"))?;
        let place = match key {
            "class" => &mut class,
            "cycle" => &mut cycle,
            "lead" => &mut lead,
            "socket" => &mut socket,
            key => {
                return Err(format!(
                    "has {key:?}, which is none of class, cycle, lead, socket"
                ));
            }
        };
        if place.replace(value).is_some() {
            return Err(format!("says {key} twice"));
        }
    }
    let class = class.ok_or("has no class")?;
    let when = match (cycle, lead) {
        (None, None) => When::Now,
        (None, Some(_)) => return Err("has a lead, but no cycle".into()),
        (Some(cycle), lead) => {
            let lead = lead.map(|lead| format!(",lead={lead}"));
            // A grid's, which `takt preload` has, too.
            let rules = grid::rules(&format!("{cycle}{}", lead.unwrap_or_default()));
            let rules = rules.map_err(|error| format!("has no good cycle or lead ({error})"))?;
            match rules.as_slice() {
                [rule] if cycle != "now" => rule.when,
                _ => return Err(format!("has {cycle:?}, which is no cycle")),
            }
        }
    };
    Ok(Queue::Runtime(Served {
        class: class
            .parse()
            .map_err(|told| format!("has class {class:?}, which is {told}"))?,
        when,
        socket: socket.map(PathBuf::from),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_read_as_they_are_written() {
        assert_eq!("kernel".parse(), Ok(Queue::Kernel));
        let Ok(Queue::Runtime(served)) =
            "class=6,cycle=1ms+250us,lead=100us,socket=/run/takt/line.sock".parse()
        else {
            panic!("it is one");
        };
        assert_eq!(
            served.class,
            ClassFrom::Fixed(takt::TrafficClass::new(6).expect("one"))
        );
        assert_eq!(served.socket, Some("/run/takt/line.sock".into()));
        let launch = served.when.launch(takt::TaiTime::from_nanos(10_200_000));
        assert_eq!(launch, Some(takt::TaiTime::from_nanos(11_250_000)));
        let Ok(Queue::Runtime(served)) = "class=frame".parse() else {
            panic!("it is one");
        };
        assert_eq!((served.class, served.when), (ClassFrom::Frame, When::Now));
    }

    #[test]
    fn what_is_no_queue_is_refused_with_the_part_that_is_wrong() {
        for (text, part) in [
            ("", "no KEY=VALUE"),
            ("runtime", "\"runtime\""),
            ("class=8", "\"8\""),
            ("cycle=1ms", "no class"),
            ("class=5,lead=1us", "no cycle"),
            ("class=5,cycle=1", "\"1\""),
            ("class=5,cycle=now", "\"now\""),
            ("class=5,cycle=1ms;2ms", "1ms;2ms"),
            ("class=5,class=6", "class twice"),
            ("class=5,port=7", "\"port\""),
        ] {
            let told = text.parse::<Queue>().expect_err(text).to_string();
            assert!(told.contains(part), "{text}: {told}");
        }
    }
}
