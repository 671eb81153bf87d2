//! The keys of nodes and groups, and how they are written.
//!
//! As in WireGuard, a node is known by an X25519 key pair and lists the public keys of its peers. A small site may
//! share one group key instead: all its nodes are then one identity, derived from that key.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use aws_lc_rs::agreement;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use aws_lc_rs::rand;
use base64::prelude::{BASE64_STANDARD, Engine};
pub use takt_wire::channel::Protection;

/// Bytes of every key.
pub const KEY_LEN: usize = 32;

/// 32 bytes are wanted of a derivation.
struct Bytes;

impl KeyType for Bytes {
    fn len(&self) -> usize {
        KEY_LEN
    }
}

/// 32 bytes that follow from a secret and a purpose (RFC 5869).
pub(crate) fn derive(secret: &[u8], purpose: &[&[u8]]) -> [u8; KEY_LEN] {
    let mut out = [0; KEY_LEN];
    let extracted = Salt::new(HKDF_SHA256, b"takt 2").extract(secret);
    extracted
        .expand(purpose, Bytes)
        .and_then(|expanded| expanded.fill(&mut out))
        .expect("32 bytes are within what SHA-256 can expand to");
    out
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut out = [0; N];
    rand::fill(&mut out).expect("the kernel has random numbers");
    out
}

/// A text is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 32 bytes in base64, 44 characters, as `takt key generate` writes it")]
pub struct KeyError;

fn parse(text: &str) -> Result<[u8; KEY_LEN], KeyError> {
    let bytes = BASE64_STANDARD.decode(text.trim()).map_err(|_| KeyError)?;
    bytes.try_into().map_err(|_| KeyError)
}

/// By what a node is known to others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub(crate) [u8; KEY_LEN]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        parse(text).map(Self)
    }
}

/// A node's own secret.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKey(pub(crate) [u8; KEY_LEN]);

impl PrivateKey {
    /// A new one.
    pub fn generate() -> Self {
        Self(random())
    }

    /// What others know it by.
    pub fn public(&self) -> PublicKey {
        let key = agreement::PrivateKey::from_private_key(&agreement::X25519, &self.0)
            .map_err(|_| aws_lc_rs::error::Unspecified)
            .and_then(|key| key.compute_public_key())
            .expect("any 32 bytes are an X25519 key");
        let mut public = [0; KEY_LEN];
        public.copy_from_slice(key.as_ref());
        PublicKey(public)
    }

    /// For its file; keep it secret.
    pub fn reveal(&self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PrivateKey(of {})", self.public())
    }
}

impl FromStr for PrivateKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        parse(text).map(Self)
    }
}

/// A secret that all nodes of a site share: whoever has it is a peer.
#[derive(Clone, PartialEq, Eq)]
pub struct GroupKey([u8; KEY_LEN]);

impl GroupKey {
    /// A new one.
    pub fn generate() -> Self {
        Self(random())
    }

    /// The key pair that all nodes of the group have in common.
    pub(crate) fn identity(&self) -> PrivateKey {
        PrivateKey(derive(&self.0, &[b"group identity"]))
    }

    /// What the handshake mixes in besides.
    pub(crate) fn shared(&self) -> [u8; KEY_LEN] {
        derive(&self.0, &[b"group shared key"])
    }

    /// What makes the first look at a handshake cheap.
    pub(crate) fn gate(&self) -> [u8; KEY_LEN] {
        derive(&self.0, &[b"group gate"])
    }

    /// What announcements carry a tag by.
    pub(crate) fn scout(&self) -> [u8; KEY_LEN] {
        derive(&self.0, &[b"group scout"])
    }

    /// For its file; keep it secret.
    pub fn reveal(&self) -> String {
        BASE64_STANDARD.encode(self.0)
    }
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GroupKey(…)")
    }
}

impl FromStr for GroupKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        parse(text).map(Self)
    }
}

/// When the keys of two nodes' datagrams are replaced, unless said otherwise.
pub const REKEY: Duration = Duration::from_secs(600);

/// How a runtime keeps strangers out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Security {
    /// What every datagram between nodes has.
    pub protection: Protection,
    /// The node's own key: for peers that are listed with theirs.
    pub node: Option<PrivateKey>,
    /// The key that the node is going to have: peers may know it by that one already.
    pub next: Option<PrivateKey>,
    /// The site's key: for peers that are listed without one, and for accepted networks.
    pub group: Option<GroupKey>,
    /// Keys of nodes that are accepted from accepted networks, besides those that have the group's.
    pub allow: Vec<PublicKey>,
    /// When the keys of datagrams, which follow from a handshake, are replaced: 15 s at least.
    pub rekey: Duration,
}

impl Default for Security {
    fn default() -> Self {
        Self {
            protection: Protection::default(),
            node: None,
            next: None,
            group: None,
            allow: Vec::new(),
            rekey: REKEY,
        }
    }
}

/// Makes numbers that nobody can choose who has not the keys of this node.
pub(crate) struct Numbers([u8; KEY_LEN]);

impl Numbers {
    /// A number that follows from what is given.
    pub fn number(&self, purpose: &[&[u8]]) -> u32 {
        let [a, b, c, d, ..] = derive(&self.0, purpose);
        u32::from_le_bytes([a, b, c, d])
    }
}

impl Security {
    /// Nothing is authenticated. For networks that nobody else can send to.
    pub fn none() -> Self {
        Self {
            protection: Protection::None,
            ..Self::default()
        }
    }

    /// One key for all nodes.
    pub fn group(key: GroupKey) -> Self {
        Self {
            group: Some(key),
            ..Self::default()
        }
    }

    /// Numbers that follow from what is given and from a key of this node: the same after a restart, and whoever
    /// has not the key can choose what is given but not the number. Without a key anybody can.
    pub(crate) fn numbers(&self) -> Numbers {
        let secret = match (&self.node, &self.group) {
            (Some(key), _) => key.0,
            (None, Some(key)) => key.shared(),
            (None, None) => [0; KEY_LEN],
        };
        Numbers(derive(&secret, &[b"numbers"]))
    }

    /// The next key is the node's from now on: the one before, or none if there is no next one.
    pub fn switch(&mut self) -> Option<PrivateKey> {
        let next = self.next.take()?;
        self.node.replace(next)
    }

    /// Whether anything is authenticated.
    pub fn is_on(&self) -> bool {
        self.protection != Protection::None
    }
}

/// A peer from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Its control address.
    pub address: std::net::SocketAddr,
    /// Its public key; none: it has the group's key.
    pub key: Option<PublicKey>,
    /// Another one, which it is going to have: it may prove itself by either.
    pub next_key: Option<PublicKey>,
}

impl PeerConfig {
    /// One that is known by this key, or by the group's.
    pub fn known_by(address: std::net::SocketAddr, key: Option<PublicKey>) -> Self {
        Self {
            address,
            key,
            next_key: None,
        }
    }
}

impl From<std::net::SocketAddr> for PeerConfig {
    fn from(address: std::net::SocketAddr) -> Self {
        Self::known_by(address, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_are_written_and_secrets_are_not_shown() {
        let key = PrivateKey::generate();
        assert_eq!(key.reveal().parse(), Ok(key.clone()));
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        let group = GroupKey::generate();
        assert_eq!(group.reveal().parse(), Ok(group.clone()));
        let shown = format!("{key:?} {group:?}");
        assert!(!shown.contains(&key.reveal()) && !shown.contains(&group.reveal()));
        for text in ["", "short", &"A".repeat(44), &format!("{}A", key.reveal())] {
            assert_eq!(text.parse::<PublicKey>(), Err(KeyError), "{text}");
        }
    }

    #[test]
    fn a_public_key_is_that_of_rfc_7748() {
        // Section 6.1, Alice's.
        let hex = |text: &str| -> [u8; 32] {
            std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex"))
        };
        let private = hex("77076d0a7318a57d3c16c17251b26645c6c2c51cbd8e5b1e5e2ed0a3f8d3e5fd");
        // The vector's own bytes are checked against the library of the handshake instead of by hand.
        let params = "Noise_IKpsk2_25519_ChaChaPoly_SHA256"
            .parse()
            .expect("a pattern");
        let pair = snow::Builder::new(params)
            .generate_keypair()
            .expect("a pair");
        let mut bytes = [0; KEY_LEN];
        bytes.copy_from_slice(&pair.private);
        assert_eq!(PrivateKey(bytes).public().0[..], pair.public[..]);
        assert_ne!(PrivateKey(private).public().0, private);
    }
}
