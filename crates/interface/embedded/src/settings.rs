//! How an embedded runtime is told what it needs: by the program, or by its environment.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use takt_runtime::StartError;
use takt_runtime::config::{Config, DEFAULT_PORT, Departure, Idle, LaneConfig, ScoutConfig};
use takt_runtime::control::scout::addresses;
use takt_runtime::peering::Meeting;
pub use takt_runtime::peering::keys::{
    GroupKey, KeyError, PeerConfig, PrivateKey, Protection, PublicKey, Security,
};

/// Settings of an embedded runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Local address of the node's traffic; unspecified: all of them.
    pub address: IpAddr,
    /// UDP port of the peering protocol; 0 = any, for a runtime that only looks inward or outward.
    pub port: u16,
    /// If the port is taken, which is so when another such program runs, take the next free one.
    pub next_port: bool,
    /// Peering addresses of other runtimes.
    pub peers: Vec<PeerConfig>,
    /// How strangers are kept out: by default every datagram is authenticated, so peers take a key.
    pub security: Security,
    /// Directory of this user where runtimes of this machine find each other, see [`local`](Self::local); none: they
    /// do not.
    pub rendezvous: Option<PathBuf>,
    /// Peering addresses of runtimes that introduce others to this one: whoever they name and has the group's key, or one
    /// of [`Security::allow`], becomes a peer.
    pub introducers: Vec<SocketAddr>,
    /// Interface on whose link other runtimes are found, and find this one; none: they are not looked for. Those of its
    /// networks that have the group's key, or one of [`Security::allow`], become peers.
    pub scout: Option<String>,
    /// Interface for AF_XDP; none: kernel UDP alone.
    pub interface: Option<String>,
    /// What the runtime's thread does when the application does not drive the lane.
    pub idle: Idle,
    /// Core of that thread.
    pub core: Option<usize>,
    /// Messages with a launch time.
    pub departure: Departure,
    /// How long the end of the runtime or of the process waits for what was emitted to be sent.
    pub linger: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: DEFAULT_PORT,
            next_port: false,
            peers: Vec::new(),
            rendezvous: None,
            introducers: Vec::new(),
            security: Security::default(),
            scout: None,
            interface: None,
            idle: Idle::default(),
            core: None,
            departure: Departure::default(),
            linger: Duration::from_secs(1),
        }
    }
}

/// An environment variable with a value that means nothing.
#[derive(Debug, thiserror::Error)]
#[error("{variable} is `{value}`: it must be {expected}")]
pub struct SettingsError {
    variable: &'static str,
    value: String,
    expected: &'static str,
}

impl Settings {
    /// A runtime on loopback that finds the others of its user on this machine, and is found: by a directory of that user
    /// ([`place::user_directory`](takt::place::user_directory)). Any port.
    pub fn local() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            rendezvous: Some(takt::place::user_directory().join("nodes")),
            ..Self::default()
        }
    }

    /// The environment variables that [`from_environment`](Self::from_environment) reads.
    pub const VARIABLES: [&str; 10] = [
        "TAKT_ADDRESS",
        "TAKT_PORT",
        "TAKT_PEERS",
        "TAKT_INTERFACE",
        "TAKT_PROTECTION",
        "TAKT_GROUP_KEY",
        "TAKT_KEY",
        "TAKT_ALLOW",
        "TAKT_SCOUT",
        "TAKT_RENDEZVOUS",
    ];

    /// Reads `TAKT_ADDRESS`, `TAKT_PORT`, `TAKT_PEERS` (addresses with ports, between commas, each as
    /// `PUBLIC_KEY@ADDRESS:PORT` if the peer has a key of its own), `TAKT_INTERFACE`, `TAKT_PROTECTION` (`integrity`,
    /// `encrypt` or `none`), `TAKT_GROUP_KEY` (the key of all nodes), `TAKT_KEY` (the private key of this one), `TAKT_ALLOW`
    /// (public keys of nodes that may become peers, between commas), `TAKT_SCOUT` (the interface on whose link nodes find
    /// each other) and `TAKT_RENDEZVOUS` (addresses with ports, between commas, of nodes that introduce others). What is not
    /// set keeps its default; a port that is not set yields to the next free one if it is taken.
    /// With none of address, port, peers, scout and rendezvous the runtime is
    /// [`local`](Self::local): programs of one user on one machine find each other, and nobody else reaches them.
    ///
    /// # Errors
    /// [`SettingsError`] names the variable, its value and what would be right.
    pub fn from_environment() -> Result<Self, SettingsError> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        fn parse<T: FromStr>(
            variable: &'static str,
            value: &str,
            expected: &'static str,
        ) -> Result<T, SettingsError> {
            value.trim().parse().map_err(|_| SettingsError {
                variable,
                value: value.to_owned(),
                expected,
            })
        }
        let [
            address,
            port,
            peers,
            interface,
            protection,
            group,
            key,
            allow,
            scout,
            rendezvous,
        ] = Self::VARIABLES;
        let mut settings = match [address, port, peers, scout, rendezvous].map(&variable) {
            [None, None, None, None, None] => Self::local(),
            _ => Self::default(),
        };
        if let Some(value) = variable(address) {
            settings.address = parse(
                address,
                &value,
                "an IP address of this host such as 10.0.0.1",
            )?;
        }
        if let Some(value) = variable(port) {
            settings.port = parse(port, &value, "a UDP port, 0 to 65535")?;
        } else {
            settings.next_port = settings.port != 0;
        }
        if let Some(value) = variable(peers) {
            for peer in value.split(',').filter(|p| !p.trim().is_empty()) {
                let expected =
                    "addresses with ports between commas, such as 10.0.0.2:7400,10.0.0.3:7400";
                let (key, address) = match peer.split_once('@') {
                    Some((key, address)) => {
                        let key = parse(peers, key, "a public key before the `@`")?;
                        (Some(key), address)
                    }
                    None => (None, peer),
                };
                let address = parse(peers, address, expected)?;
                settings.peers.push(PeerConfig::known_by(address, key));
            }
        }
        if let Some(value) = variable(protection) {
            settings.security.protection = match value.trim() {
                "integrity" => Protection::Integrity,
                "encrypt" => Protection::Encrypt,
                "none" => Protection::None,
                _ => {
                    return Err(SettingsError {
                        variable: protection,
                        value,
                        expected: "`integrity`, `encrypt` or `none`",
                    });
                }
            };
        }
        // A secret is not repeated in an error.
        let secret = "a key of 44 characters in base64, as `takt key generate` makes it";
        let hidden = |_: KeyError| "(not shown)".to_owned();
        if let Some(value) = variable(group) {
            settings.security.group = Some(value.parse().map_err(|error| SettingsError {
                variable: group,
                value: hidden(error),
                expected: secret,
            })?);
        }
        if let Some(value) = variable(key) {
            settings.security.node = Some(value.parse().map_err(|error| SettingsError {
                variable: key,
                value: hidden(error),
                expected: secret,
            })?);
        }
        if let Some(value) = variable(allow) {
            for key in value.split(',').filter(|key| !key.trim().is_empty()) {
                let expected = "public keys between commas, as `takt key show` prints them";
                settings.security.allow.push(parse(allow, key, expected)?);
            }
        }
        if let Some(value) = variable(rendezvous) {
            for address in value.split(',').filter(|a| !a.trim().is_empty()) {
                let expected = "addresses with ports between commas, such as 10.0.0.1:7400";
                let address = parse(rendezvous, address, expected)?;
                settings.introducers.push(address);
            }
        }
        settings.scout = variable(scout).filter(|name| !name.is_empty());
        settings.interface = variable(interface).filter(|name| !name.is_empty());
        Ok(settings)
    }

    pub(crate) fn into_config(mut self) -> Result<Config, StartError> {
        for address in &self.introducers {
            if !self.peers.iter().any(|peer| peer.address == *address) {
                self.peers.push((*address).into());
            }
        }
        let accept = match &self.scout {
            Some(interface) => addresses(interface).map_err(|source| StartError::Scout {
                interface: interface.clone(),
                source,
            })?,
            None => Vec::new(),
        };
        let scout = self.scout.map(|interface| ScoutConfig {
            interface,
            group: None,
        });
        Ok(Config {
            name: name(),
            meeting: Meeting {
                rendezvous: self.introducers.into_iter().collect(),
                introduce: false,
            },
            address: self.address,
            port: self.port,
            peers: self.peers,
            accept,
            scout,
            security: self.security,
            departure: self.departure,
            lanes: vec![LaneConfig {
                idle: self.idle,
                core: self.core,
                ..LaneConfig::default()
            }],
            ..Config::default()
        })
    }
}

/// The program, its process and the host: many of one host are peers, and each has a name of its own. What does not fit a
/// hello is cut off at its end.
fn name() -> String {
    let program = std::env::current_exe().ok();
    let program = program.as_deref().and_then(|path| path.file_name());
    let program: String = program
        .map_or("program".into(), |name| name.to_string_lossy())
        .chars()
        .take(24)
        .collect();
    format!(
        "{program}-{}@{}",
        std::process::id(),
        Config::default().name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        Settings::from_variables(|name| {
            variables
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_names_address_port_peers_and_interface() {
        let settings = read(&[
            ("TAKT_ADDRESS", "10.0.0.1"),
            ("TAKT_PORT", "7500"),
            ("TAKT_PEERS", "10.0.0.2:7400, 10.0.0.3:7400"),
            ("TAKT_INTERFACE", "eth0"),
        ])
        .expect("valid");
        assert_eq!(settings.address, IpAddr::from([10, 0, 0, 1]));
        assert_eq!(settings.port, 7500);
        assert_eq!(settings.peers.len(), 2);
        assert_eq!(settings.interface.as_deref(), Some("eth0"));
        assert_eq!(settings.rendezvous, None);
        assert_eq!(read(&[]).expect("valid"), Settings::local());
        let settings = read(&[("TAKT_RENDEZVOUS", "10.0.0.2:7400")]).expect("valid");
        let address = "10.0.0.2:7400".parse().expect("an address");
        assert_eq!(
            (settings.introducers.clone(), settings.rendezvous.clone()),
            (vec![address], None)
        );
        let config = settings.into_config().expect("a configuration");
        assert_eq!(config.peers, [PeerConfig::from(address)]);
        assert!(config.meeting.rendezvous.contains(&address));
    }

    #[test]
    fn a_wrong_value_is_refused_by_variable_and_value() {
        let error = read(&[("TAKT_PEERS", "10.0.0.2")]).expect_err("no port");
        assert!(error.to_string().contains("TAKT_PEERS") && error.to_string().contains("10.0.0.2"));
        assert!(read(&[("TAKT_RENDEZVOUS", "10.0.0.2")]).is_err());
        assert!(read(&[("TAKT_PORT", "70000")]).is_err());
        assert!(read(&[("TAKT_ADDRESS", "eth0")]).is_err());
    }
}
