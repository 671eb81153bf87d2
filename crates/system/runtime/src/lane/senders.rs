//! Which lane elsewhere has sent a datagram: by where it comes from and the number in it. Numbers alone tell nothing:
//! they are in clear text, and each node names its own.

use std::collections::HashMap;
use std::net::IpAddr;

use super::remote::Remote;
use crate::slots::{RemoteSlot, Table};

/// The number in a datagram, and the address that it comes from; none between lanes of this node.
type Sender = (u32, Option<IpAddr>);

/// The senders that a lane knows.
#[derive(Debug, Default)]
pub(super) struct Senders {
    /// Whose each is, and whether that one has proven to be at the address.
    known: HashMap<Sender, (RemoteSlot, bool), foldhash::fast::RandomState>,
    /// Some number was named twice at one address.
    contested: bool,
    last: Option<(Sender, RemoteSlot)>,
}

/// What datagrams of a remote lane may come as, and whether it has proven to be there. The first address is where its node
/// has; what a node says of its datapaths it alone says.
fn senders_of(remote: &Remote) -> impl Iterator<Item = (Sender, bool)> + '_ {
    let number = remote.incarnation;
    let addresses = remote.addresses.iter().enumerate();
    let elsewhere = addresses.map(move |(at, &address)| ((number, Some(address)), at == 0));
    let here = (remote.addresses.is_empty()).then_some(((number, None), true));
    elsewhere.chain(here)
}

impl Senders {
    /// Whose datagram it is with this number from there. Datagrams mostly follow others of the same sender.
    #[inline]
    pub fn find(&mut self, number: u32, source: Option<IpAddr>) -> Option<RemoteSlot> {
        let sender = (number, source);
        match self.last {
            Some((last, at)) if last == sender => Some(at),
            _ => {
                let (at, _) = *self.known.get(&sender)?;
                self.last = Some((sender, at));
                Some(at)
            }
        }
    }

    /// A lane elsewhere is known from now on. What another one is known as it gets only if it has proven to be there
    /// and the other one has not.
    pub fn enter(&mut self, at: RemoteSlot, remote: &Remote) {
        self.last = None;
        for (sender, proven) in senders_of(remote) {
            let known = self.known.entry(sender).or_insert((at, proven));
            if known.0 != at {
                self.contested = true;
                if proven && !known.1 {
                    *known = (at, proven);
                }
            }
        }
    }

    /// A lane elsewhere is known no more.
    pub fn leave(&mut self, at: RemoteSlot, remote: &Remote, others: &Table<RemoteSlot, Remote>) {
        self.last = None;
        for (sender, _) in senders_of(remote) {
            if self.known.get(&sender).is_some_and(|known| known.0 == at) {
                self.known.remove(&sender);
            }
        }
        if self.contested {
            let same = |(other, named): &(RemoteSlot, &Remote)| {
                *other != at && named.incarnation == remote.incarnation
            };
            others
                .iter()
                .filter(same)
                .for_each(|(other, same)| self.enter(other, same));
        }
    }
}
