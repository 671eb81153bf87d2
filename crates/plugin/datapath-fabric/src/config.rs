//! What a datapath over libfabric is told: the keys of `[datapath.fabric]`.

use takt_datapath::OpenError;

use crate::header;

/// Shared memory copies messages up to this length into the receiver's region. Of longer ones the receiver reads the
/// sender's memory, and one that is killed meanwhile would keep it.
const SHM_FRAME: usize = 4096;
/// What a region has room for.
const SHM_PEERS: usize = 256;

/// A provider of libfabric that this datapath can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provider {
    /// InfiniBand, RoCE, iWARP.
    Verbs,
    /// The kernel's TCP.
    Tcp,
    /// Shared memory of one host.
    Shm,
}

impl Provider {
    /// Those that are tried where none is named, the best first. Shared memory reaches no other host.
    pub(crate) const TRIED: [Self; 2] = [Self::Verbs, Self::Tcp];

    /// As `provider` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }

    /// What libfabric knows it as, the likeliest first: connections are below its reliable datagrams.
    pub(crate) fn layers(self) -> &'static [&'static std::ffi::CStr] {
        match self {
            Self::Verbs => &[c"verbs;ofi_rxm"],
            Self::Tcp => &[c"tcp;ofi_rxm", c"tcp"],
            Self::Shm => &[c"shm"],
        }
    }

    pub(crate) fn has_ip_addresses(self) -> bool {
        self != Self::Shm
    }
}

/// How a datapath over libfabric is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricConfig {
    /// `None`: the first of verbs and tcp that is there.
    pub provider: Option<Provider>,
    /// The one of the provider's domains to use: a device (`mlx5_0`) with verbs, a network interface with tcp.
    pub domain: Option<String>,
    /// Bytes of a frame, with the header of 24.
    pub frame_size: usize,
    /// Receives that are posted.
    pub receives: usize,
    /// Frames to send.
    pub sends: usize,
    /// Most peers of a port.
    pub peers: usize,
    /// For tests of shared memory: reach ports of this process as well. What is sent to one that has been closed is
    /// the end of the process, for the provider does not notice.
    #[doc(hidden)]
    pub within_process: bool,
}

impl Default for FabricConfig {
    fn default() -> Self {
        Self {
            provider: None,
            domain: None,
            frame_size: 16_384,
            receives: 256,
            sends: 256,
            peers: 1024,
            within_process: false,
        }
    }
}

impl FabricConfig {
    /// The defaults with this provider.
    pub fn new(provider: Provider) -> Self {
        Self {
            provider: Some(provider),
            ..Self::default()
        }
    }

    /// Reads the keys of the configuration.
    ///
    /// # Errors
    /// [`OpenError::Unavailable`] names the key, its value and what it may be.
    pub fn from_options<'a>(
        options: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, OpenError> {
        let mut config = Self::default();
        for (key, value) in options {
            config.set(key, value.trim())?;
        }
        config.check()?;
        Ok(config)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), OpenError> {
        let number = || {
            value
                .parse()
                .map_err(|_| refused(format!("{key} = {value:?}: write a number")))
        };
        match key {
            "provider" => {
                self.provider = match value {
                    "auto" => None,
                    "verbs" => Some(Provider::Verbs),
                    "tcp" => Some(Provider::Tcp),
                    "shm" => Some(Provider::Shm),
                    "efa" => {
                        return Err(refused(
                            "provider = \"efa\": its endpoints have no IP addresses, by which nodes know each \
                             other; use tcp"
                                .into(),
                        ));
                    }
                    _ => {
                        return Err(refused(format!(
                            "provider = {value:?}: choose auto, verbs, tcp or shm"
                        )));
                    }
                }
            }
            "domain" => self.domain = Some(value.into()),
            "frame_size" => self.frame_size = number()?,
            "receives" => self.receives = number()?,
            "sends" => self.sends = number()?,
            "peers" => self.peers = number()?,
            _ => {
                return Err(refused(format!(
                    "unknown key {key:?}; there are provider, domain, frame_size, receives, sends, peers"
                )));
            }
        }
        Ok(())
    }

    /// With limits that a provider has by itself.
    pub(crate) fn with(&self, provider: Provider) -> Self {
        let mut own = self.clone();
        if provider == Provider::Shm {
            own.frame_size = own.frame_size.min(SHM_FRAME);
            own.peers = own.peers.min(SHM_PEERS);
        }
        own
    }

    /// # Errors
    /// [`OpenError::Unavailable`].
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let domain = self.domain.as_deref();
        if domain.is_some_and(|domain| domain.is_empty() || domain.contains('\0')) {
            return Err(refused(
                "domain: write a device or an interface as `fi_info` has it".into(),
            ));
        }
        for (key, value, least, most) in [
            ("frame_size", self.frame_size, 256 + header::LEN, 16_384),
            ("receives", self.receives, 16, 8192),
            ("sends", self.sends, 16, 8192),
            ("peers", self.peers, 1, 65_535),
        ] {
            if !(least..=most).contains(&value) {
                return Err(refused(format!(
                    "{key} = {value}: choose from {least} to {most}"
                )));
            }
        }
        Ok(())
    }
}

pub(crate) fn refused(text: String) -> OpenError {
    OpenError::Unavailable(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read() {
        let config = FabricConfig::from_options([
            ("provider", "tcp"),
            ("domain", "eth0"),
            ("frame_size", "4096"),
            ("receives", "64"),
            ("sends", " 32 "),
            ("peers", "7"),
        ])
        .expect("a configuration");
        let expected = FabricConfig {
            provider: Some(Provider::Tcp),
            domain: Some("eth0".into()),
            frame_size: 4096,
            receives: 64,
            sends: 32,
            peers: 7,
            within_process: false,
        };
        assert_eq!(config, expected);
        let nothing = FabricConfig::from_options([]).expect("the defaults");
        assert_eq!(nothing, FabricConfig::default());
    }

    #[test]
    fn what_cannot_be_is_refused_by_name() {
        for (key, value, said) in [
            ("provider", "efa", "no IP addresses"),
            ("provider", "opx", "choose auto, verbs, tcp or shm"),
            ("domain", "", "as `fi_info` has it"),
            ("domain", "a\0b", "as `fi_info` has it"),
            ("frame_size", "279", "from 280 to"),
            ("frame_size", "16385", "to 16384"),
            ("receives", "15", "from 16"),
            ("sends", "8193", "to 8192"),
            ("sends", "-1", "write a number"),
            ("peers", "0", "from 1"),
            ("colour", "red", "there are provider, domain"),
        ] {
            let error = FabricConfig::from_options([(key, value)]).expect_err("refused");
            let error = error.to_string();
            assert!(error.contains(key) && error.contains(said), "{error}");
        }
    }
}
