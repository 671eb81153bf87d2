//! `takt topic list`.

use std::time::Duration;

use clap::Args;
use takt_messaging::Topic;

use super::Joined;
use crate::application::Application;
use crate::failure::Failure;
use crate::output::{Align, Form, dash, name, print, print_json, table};

const HELP: &str = "\
What programs say of themselves: every program that publishes or subscribes tells the others. A list is
complete when nothing new has been heard of for a moment; where nodes have just met that can take two
seconds (--wait 3s).

Examples:
  takt topic list
  takt topic list --wait 3s --json | jq -r '.[].name'";

/// How long nothing new has to be heard of.
const QUIET: Duration = Duration::from_millis(300);

/// Lists topics, with who writes and reads them.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct List {
    /// Listen for this long at least
    #[arg(long, value_name = "TIME", default_value = "300ms", value_parser = crate::time::parse)]
    wait: Duration,
    #[command(flatten)]
    application: Application,
    #[command(flatten)]
    form: Form,
}

impl List {
    pub fn run(self) -> Result<(), Failure> {
        let joined = Joined::new(&self.application, "takt topic list")?;
        let topics = joined
            .participant
            .discover(self.wait.max(QUIET), self.wait + 10 * QUIET)?;
        if let Some(problem) = joined.participant.problem() {
            eprintln!("takt: warning: the list is not complete: {problem}");
        }
        if self.form.json {
            return print_json(&topics);
        }
        if topics.is_empty() {
            eprintln!(
                "nobody publishes or subscribes: try `takt topic echo weather` in another terminal"
            );
            return Ok(());
        }
        print(&shown(&topics))
    }
}

fn shown(topics: &[Topic]) -> String {
    let columns = [
        ("TOPIC", Align::Left),
        ("PUBLISHERS", Align::Right),
        ("SUBSCRIBERS", Align::Right),
        ("ENCODING", Align::Left),
    ];
    let rows = topics.iter().map(|topic| {
        let encodings = topic.encodings.iter().map(ToString::to_string);
        vec![
            name(&topic.name),
            topic.publishers.len().to_string(),
            topic.subscribers.len().to_string(),
            dash(&encodings.collect::<Vec<_>>().join(",")),
        ]
    });
    table(&columns, rows.collect())
}
