//! Scouting: how nodes on one link learn of each other's addresses without a list of them.
//!
//! A node announces its peering address to a multicast group. Whoever hears it begins a handshake with that
//! address ([`super::association`]), which proves who is there. An announcement carries a tag by the key that both
//! sides share: the group's, or what two nodes have in common by their key pairs (X25519, one tag for each node that is
//! allowed). One without a right tag leaves nothing behind, and an announcement is never answered by
//! itself, so that it neither fills memory nor makes a node send to an address that a stranger chose. A repeated one
//! says what was true before: a handshake is tried with that address, and forgotten.
//!
//! Pure; see [`super::Peering`].

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use aws_lc_rs::agreement;

use super::association::{HEADER, MAC, header, mac, same};
use super::keys::{KEY_LEN, PrivateKey, PublicKey, Security, derive};

/// How often a node announces itself.
pub const SCOUT_EVERY: Duration = Duration::from_secs(2);
/// Most tags in a datagram.
const TAGS: usize = 64;
/// Behind the header: address as IPv6, port, and zeros.
const PLACE: usize = 24;
/// Type of the datagram.
const SCOUT: u8 = 20;

const AS_NODE: u8 = 0;
const AS_GROUP: u8 = 1;
const AS_ANYBODY: u8 = 2;

/// What two nodes have in common by their key pairs.
fn pair_key(own: &PrivateKey, other: &PublicKey) -> Option<[u8; KEY_LEN]> {
    let own = agreement::PrivateKey::from_private_key(&agreement::X25519, &own.0).ok()?;
    let other = agreement::UnparsedPublicKey::new(&agreement::X25519, &other.0);
    // Refused: a key of low order, with which everybody has the same in common.
    agreement::agree(&own, other, aws_lc_rs::error::Unspecified, |shared| {
        Ok(derive(shared, &[b"scout pair"]))
    })
    .ok()
}

/// What an announcement says.
#[derive(Debug, PartialEq, Eq)]
pub struct Announced {
    /// The peering address of who sent it.
    pub address: SocketAddr,
    /// Its incarnation.
    pub incarnation: u64,
    /// By which it is to be met; `None`: by the group's key, or any.
    pub key: Option<PublicKey>,
}

/// Why an announcement counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// It is none.
    Malformed,
    /// Of another version.
    Version,
    /// Its tag is not one of a key that is known here.
    Unauthenticated,
}

/// Whether an announcement names the node of this incarnation as its sender.
pub fn is_of(incarnation: u64, announcement: &[u8]) -> bool {
    announcement.get(8..HEADER) == Some(&incarnation.to_le_bytes()[..])
}

/// The keys of announcements.
#[derive(Default)]
pub struct Scout {
    open: bool,
    group: Option<[u8; KEY_LEN]>,
    own: Option<PublicKey>,
    pairs: Vec<(PublicKey, [u8; KEY_LEN])>,
}

impl Scout {
    /// With the keys of a node.
    pub fn new(security: &Security) -> Self {
        if !security.is_on() {
            return Self {
                open: true,
                ..Self::default()
            };
        }
        let node = security.node.as_ref();
        let pairs = node.map(|own| {
            let pair = |key: &PublicKey| Some((*key, pair_key(own, key)?));
            security.allow.iter().filter_map(pair).collect()
        });
        Self {
            open: false,
            group: security.group.as_ref().map(super::keys::GroupKey::scout),
            own: node.map(PrivateKey::public),
            pairs: pairs.unwrap_or_default(),
        }
    }

    /// The announcements of the node at `address`, one for each kind of key that it has.
    pub fn announce(&self, address: SocketAddr, incarnation: u64) -> Vec<Vec<u8>> {
        let begin = |kind| {
            let mut datagram = header(SCOUT, 0, kind).to_vec();
            datagram[8..HEADER].copy_from_slice(&incarnation.to_le_bytes());
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            datagram.extend_from_slice(&ip.octets());
            datagram.extend_from_slice(&address.port().to_le_bytes());
            datagram.resize(HEADER + PLACE, 0);
            datagram
        };
        if self.open {
            return vec![begin(AS_ANYBODY)];
        }
        let mut all = Vec::new();
        if let Some(key) = &self.group {
            let mut datagram = begin(AS_GROUP);
            let tag = mac(key, &[&datagram]);
            datagram.extend_from_slice(&tag);
            all.push(datagram);
        }
        for pairs in self.pairs.chunks(TAGS) {
            let mut datagram = begin(AS_NODE);
            datagram.extend(self.own.iter().flat_map(|own| own.0));
            let body = datagram.clone();
            for (_, key) in pairs {
                datagram.extend_from_slice(&mac(key, &[&body]));
            }
            all.push(datagram);
        }
        all
    }

    /// Reads an announcement.
    ///
    /// # Errors
    /// [`Unheard`].
    pub fn hear(&self, datagram: &[u8]) -> Result<Announced, Unheard> {
        let (body, rest) = datagram
            .split_at_checked(HEADER + PLACE)
            .ok_or(Unheard::Malformed)?;
        let kind = body[7];
        if body[..4] != super::message::MAGIC {
            return Err(Unheard::Malformed);
        }
        if body[4] != super::message::VERSION {
            return Err(Unheard::Version);
        }
        if body[5] != SCOUT || body[6] != 0 || body[HEADER + 18..].iter().any(|&byte| byte != 0) {
            return Err(Unheard::Malformed);
        }
        let at: [u8; 16] = std::array::from_fn(|i| body[HEADER + i]);
        let ip = Ipv6Addr::from(at).to_canonical();
        let port = u16::from_le_bytes([body[HEADER + 16], body[HEADER + 17]]);
        if port == 0 || ip.is_unspecified() || ip.is_multicast() {
            return Err(Unheard::Malformed);
        }
        let key = match (kind, &self.group) {
            (AS_ANYBODY, _) if self.open && rest.is_empty() => None,
            (AS_GROUP, Some(key)) if same(rest, &mac(key, &[body])) => None,
            (AS_NODE, _) => Some(self.hear_node(body, rest, datagram)?),
            _ => return Err(Unheard::Unauthenticated),
        };
        Ok(Announced {
            address: SocketAddr::new(ip, port),
            incarnation: u64::from_le_bytes(std::array::from_fn(|i| body[8 + i])),
            key,
        })
    }

    fn hear_node(&self, body: &[u8], rest: &[u8], all: &[u8]) -> Result<PublicKey, Unheard> {
        let (key, tags) = rest.split_at_checked(KEY_LEN).ok_or(Unheard::Malformed)?;
        if tags.len() % MAC != 0 || tags.len() > TAGS * MAC {
            return Err(Unheard::Malformed);
        }
        let known = self.pairs.iter().find(|(known, _)| known.0[..] == *key);
        let (known, pair) = known.ok_or(Unheard::Unauthenticated)?;
        let right = mac(pair, &[&all[..body.len() + KEY_LEN]]);
        match tags.chunks(MAC).any(|tag| same(tag, &right)) {
            true => Ok(*known),
            false => Err(Unheard::Unauthenticated),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::GroupKey;
    use super::*;

    fn address() -> SocketAddr {
        "10.0.0.1:7400".parse().expect("an address")
    }

    fn node(allow: Vec<PublicKey>, key: &PrivateKey) -> Security {
        Security {
            node: Some(key.clone()),
            allow,
            ..Security::default()
        }
    }

    #[test]
    fn a_group_hears_its_own_and_nobody_else() {
        let group = Scout::new(&Security::group(GroupKey::generate()));
        let other = Scout::new(&Security::group(GroupKey::generate()));
        let said = group.announce(address(), 7);
        let [datagram] = &said[..] else {
            panic!("one announcement")
        };
        let heard = Announced {
            address: address(),
            incarnation: 7,
            key: None,
        };
        assert_eq!(group.hear(datagram), Ok(heard));
        assert_eq!(other.hear(datagram), Err(Unheard::Unauthenticated));
        // With another address, incarnation or tag it is nobody's.
        for at in 8..datagram.len() {
            let mut forged = datagram.clone();
            forged[at] ^= 1;
            assert!(group.hear(&forged).is_err(), "byte {at}");
        }
        for length in 0..datagram.len() {
            assert!(group.hear(&datagram[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_node_is_heard_by_those_that_allow_it_and_that_it_allows() {
        let keys: Vec<PrivateKey> = (0..4).map(|_| PrivateKey::generate()).collect();
        let publics: Vec<PublicKey> = keys.iter().map(PrivateKey::public).collect();
        // More than one datagram's worth of others.
        let mut allowed: Vec<PublicKey> =
            (0..100).map(|_| PrivateKey::generate().public()).collect();
        allowed.extend([publics[1], publics[2]]);
        let speaker = Scout::new(&node(allowed, &keys[0]));
        let said = speaker.announce(address(), 7);
        assert_eq!(said.len(), 2);
        assert!(said.iter().all(|datagram| datagram.len() <= 1200));
        let hear = |security: Security| {
            let scout = Scout::new(&security);
            let mut heard = said.iter().filter_map(|datagram| scout.hear(datagram).ok());
            heard.next().and_then(|announced| announced.key)
        };
        assert_eq!(hear(node(vec![publics[0]], &keys[1])), Some(publics[0]));
        assert_eq!(hear(node(vec![publics[0]], &keys[2])), Some(publics[0]));
        assert_eq!(
            hear(node(vec![publics[0]], &keys[3])),
            None,
            "not allowed there"
        );
        assert_eq!(
            hear(node(vec![publics[3]], &keys[1])),
            None,
            "not allowed here"
        );
    }

    #[test]
    fn without_protection_an_announcement_has_no_tag_and_with_it_that_is_not_heard() {
        let open = Scout::new(&Security::none());
        let said = open.announce(address(), 7);
        assert_eq!(
            open.hear(&said[0]).map(|heard| heard.address),
            Ok(address())
        );
        let group = Scout::new(&Security::group(GroupKey::generate()));
        assert_eq!(group.hear(&said[0]), Err(Unheard::Unauthenticated));
    }

    #[test]
    fn a_key_of_low_order_has_nothing_in_common_with_a_node() {
        let zero = PublicKey([0; KEY_LEN]);
        assert!(pair_key(&PrivateKey::generate(), &zero).is_none());
    }
}
