//! `takt key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::admin::proto::{NextKeyRequest, SwitchKeyRequest};
use taktd::config::Settings;
use taktd::daemon::DaemonError;
use taktd::security::{GroupKey, KeyFileError, PrivateKey, default_key_file, read, write};

use crate::admin::Daemon;
use crate::failure::Failure;
use crate::output::{Form, print, print_json};

const HELP: &str = "\
A node proves to its peers who it is by a key pair. Its private key stays in a file on the node, which
the daemon makes at its first start; its public key is what the peers list. A small site may share one
group key instead: copy its file to all nodes and name it as `security.group_key_file`.

To change the key of a node that runs, without losing a message: `rotate` there; have all its peers list what
that prints as its `next_key` (`takt peer add --next-key`, or the configuration and `takt reload`); then
`rotate --switch` there; in the end have them list the new key alone.

Examples:
  takt key show
  takt peer add 10.0.0.2 --key \"$(ssh node2 takt key show)\"
  takt key generate --group /etc/takt/group.key
  takt key rotate
  takt peer add 10.0.0.2 --key OLD --next-key NEW
  takt key rotate --switch";

/// Makes and changes keys of nodes and groups, and shows public keys.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Key {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Make a key in a new file that its owner alone can read; prints the public key
    Generate(Generate),
    /// Print the public key of the private key in a file
    Show(Show),
    /// Make the next key of the node that runs, unless that is done, and print its public key; with --switch
    /// give it to the node
    Rotate(Rotate),
}

#[derive(Debug, Args)]
struct Rotate {
    /// From now on the node has its next key; prints the public key. All its peers must list it by then
    #[arg(long)]
    switch: bool,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    form: Form,
}

/// A key of a node that runs.
#[derive(Debug, Serialize)]
struct Rotated {
    public: String,
    /// Whether the node has it, or is going to have it.
    in_use: bool,
}

impl Rotate {
    fn run(self) -> Result<(), Failure> {
        let public = self.daemon.ask(async |mut client| {
            Ok(if self.switch {
                let request = SwitchKeyRequest::default();
                client.switch_key(request).await?.into_inner().key
            } else {
                client.next_key(NextKeyRequest {}).await?.into_inner().key
            })
        })?;
        if self.form.json {
            let in_use = self.switch;
            return print_json(&Rotated { public, in_use });
        }
        print(&format!("{public}\n"))
    }
}

#[derive(Debug, Args)]
struct Generate {
    /// The file; one that is there is left as it is [default: `security.key_file` of the configuration,
    /// else /var/lib/takt/node.key, without root ~/.local/state/takt/node.key]
    #[arg(required_if_eq("group", "true"))]
    file: Option<PathBuf>,
    /// Make a key that all nodes of a site share
    #[arg(long)]
    group: bool,
    #[command(flatten)]
    configured: Configured,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Show {
    /// The file with the private key [default: that of the node, as for `generate`]
    file: Option<PathBuf>,
    #[command(flatten)]
    configured: Configured,
    #[command(flatten)]
    form: Form,
}

/// Whose key is meant where no file is named.
#[derive(Debug, Args)]
struct Configured {
    /// Configuration of the node; without it /etc/takt/takt.toml, or the defaults if that is not there
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    config: Option<PathBuf>,
}

impl Configured {
    /// The key file of the node with this configuration.
    fn key_file(&self) -> Result<PathBuf, Failure> {
        let settings = Settings::load(self.config.as_deref()).map_err(DaemonError::from)?;
        Ok((settings.file.security.key_file).unwrap_or_else(default_key_file))
    }
}

/// A key as it is told.
#[derive(Debug, Serialize)]
struct Told {
    file: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    public: Option<String>,
}

impl Key {
    pub fn run(self) -> Result<(), Failure> {
        let failed = |error: KeyFileError| Failure::Other(error.to_string());
        let (file, public, form) = match self.action {
            Action::Generate(Generate {
                file,
                group,
                configured,
                form,
            }) => {
                let file = file.map_or_else(|| configured.key_file(), Ok)?;
                let (secret, public) = if group {
                    (GroupKey::generate().reveal(), None)
                } else {
                    let key = PrivateKey::generate();
                    (key.reveal(), Some(key.public().to_string()))
                };
                write(&file, &secret).map_err(failed)?;
                (file, public, form)
            }
            Action::Show(Show {
                file,
                configured,
                form,
            }) => {
                let file = file.map_or_else(|| configured.key_file(), Ok)?;
                let key: PrivateKey = read(&file).map_err(failed)?;
                (file, Some(key.public().to_string()), form)
            }
            Action::Rotate(rotate) => return rotate.run(),
        };
        if form.json {
            return print_json(&Told { file, public });
        }
        match public {
            Some(public) => print(&format!("{public}\n")),
            None => print(&format!("{}\n", file.display())),
        }
    }
}
