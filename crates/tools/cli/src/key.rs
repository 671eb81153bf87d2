//! `takt key`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde::Serialize;
use taktd::config::Settings;
use taktd::daemon::DaemonError;
use taktd::security::{GroupKey, KeyFileError, PrivateKey, default_key_file, read, write};

use crate::failure::Failure;
use crate::output::{Form, print, print_json};

const HELP: &str = "\
A node proves to its peers who it is by a key pair. Its private key stays in a file on the node, which
the daemon makes at its first start; its public key is what the peers list. A small site may share one
group key instead: copy its file to all nodes and name it as `security.group_key_file`.

Examples:
  takt key show
  takt peer add 10.0.0.2 --key \"$(ssh node2 takt key show)\"
  takt key generate --group /etc/takt/group.key";

/// Makes keys of nodes and groups, and shows public keys.
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
