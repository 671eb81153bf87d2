//! What the sessions of a listening socket hold together, and the bounds of that.
//!
//! A session is charged for what it takes before it takes it. The charge for memory and descriptors ends when the
//! thing is really gone: released by the [`Reaper`](super::reaper::Reaper), not when the session ended. So a tenant
//! cannot hold more by ending sessions faster than they can be released. What is a mere number, of sessions and of their
//! sources and sinks, is free as soon as the session has ended: who is refused or leaves may come again at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use takt_session::unserved::{Counts, REASONS};
use takt_session::{ErrorCode, Failure};

use crate::policy::Policy;

/// Descriptors that a session holds from its connection on: its socket, its process, its arena, its doorbell.
pub const DESCRIPTORS_OF_A_SESSION: usize = 4;

/// An amount of everything that is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Sessions, also those that have not attached yet.
    pub sessions: usize,
    /// Bytes of arenas.
    pub memory: usize,
    /// Sources and sinks.
    pub endpoints: usize,
    /// Descriptors of this process.
    pub descriptors: usize,
}

/// What the sessions of all listening sockets hold together of the memory, and may.
#[derive(Debug)]
pub struct Memory {
    held: AtomicUsize,
    most: usize,
}

impl Memory {
    /// Nothing is held, and so many bytes may be.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            held: AtomicUsize::new(0),
            most,
        })
    }
}

/// What is held at present. Added to by the control thread alone; subtracted from by whoever releases.
#[derive(Debug, Default)]
pub struct Account {
    sessions: AtomicUsize,
    memory: AtomicUsize,
    endpoints: AtomicUsize,
    descriptors: AtomicUsize,
    /// With the others; none for those that came by no listening socket.
    of_all: Option<Arc<Memory>>,
    /// What its sessions, those that have ended included, have told of datagrams that did not go by the runtime.
    unserved: [AtomicU64; REASONS],
}

impl Account {
    /// One of several that have a bound in common.
    pub fn within(of_all: &Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            of_all: Some(of_all.clone()),
            ..Self::default()
        })
    }

    /// What is held by all, and how much of it may be.
    fn of_all(&self) -> (usize, usize) {
        let of_all = self.of_all.as_ref();
        of_all.map_or((0, usize::MAX), |memory| {
            (memory.held.load(Ordering::Relaxed), memory.most)
        })
    }

    /// Datagrams that the sessions did not give to the runtime, by reason.
    pub fn unserved(&self) -> Counts {
        std::array::from_fn(|at| self.unserved[at].load(Ordering::Relaxed))
    }

    /// What is held.
    pub fn usage(&self) -> Usage {
        let read = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Usage {
            sessions: read(&self.sessions),
            memory: read(&self.memory),
            endpoints: read(&self.endpoints),
            descriptors: read(&self.descriptors),
        }
    }

    fn change(&self, usage: Usage, change: impl Fn(&AtomicUsize, usize)) {
        change(&self.sessions, usage.sessions);
        change(&self.memory, usage.memory);
        if let Some(of_all) = &self.of_all {
            change(&of_all.held, usage.memory);
        }
        change(&self.endpoints, usage.endpoints);
        change(&self.descriptors, usage.descriptors);
    }
}

/// What one session holds of it. Dropped after what it stands for.
#[derive(Debug)]
pub struct Charge {
    account: Arc<Account>,
    usage: Usage,
}

impl Charge {
    /// Charges a new session.
    ///
    /// # Errors
    /// [`ErrorCode::Limit`], naming the bound, the tenant and the remedy.
    pub fn session(account: &Arc<Account>, policy: &Policy) -> Result<Self, Failure> {
        let mut charge = Self {
            account: account.clone(),
            usage: Usage::default(),
        };
        charge.add(
            policy,
            Usage {
                sessions: 1,
                descriptors: DESCRIPTORS_OF_A_SESSION,
                ..Usage::default()
            },
        )?;
        Ok(charge)
    }

    /// The session tells of so many more datagrams that did not go by the runtime.
    pub fn add_unserved(&self, more: &Counts) {
        for (count, more) in self.account.unserved.iter().zip(more) {
            count.fetch_add(*more, Ordering::Relaxed);
        }
    }

    /// Whether the session's tenant may have all that it holds a second time, beside what these of its sessions hold.
    pub fn has_room_again<'c>(&self, policy: &Policy, and: impl Iterator<Item = &'c Self>) -> bool {
        // They take no places of their own any more when they come again.
        let again = and.fold(self.usage, |sum, one| Usage {
            memory: sum.memory + one.usage.memory,
            endpoints: sum.endpoints + one.usage.endpoints,
            descriptors: sum.descriptors + one.usage.descriptors,
            ..sum
        });
        let again = Usage {
            sessions: 0,
            ..again
        };
        self.check(policy, again).is_ok()
    }

    /// Charges more.
    ///
    /// # Errors
    /// [`ErrorCode::Limit`], or [`ErrorCode::NoMemory`]: naming the bound, the tenant and the remedy. Nothing is
    /// charged then.
    pub fn add(&mut self, policy: &Policy, more: Usage) -> Result<(), Failure> {
        self.check(policy, more)?;
        self.account.change(more, |count, by| {
            count.fetch_add(by, Ordering::Relaxed);
        });
        self.usage.sessions += more.sessions;
        self.usage.memory += more.memory;
        self.usage.endpoints += more.endpoints;
        self.usage.descriptors += more.descriptors;
        Ok(())
    }

    fn check(&self, policy: &Policy, more: Usage) -> Result<(), Failure> {
        let held = self.account.usage();
        let bounds = [
            (
                held.sessions,
                more.sessions,
                policy.sessions,
                "sessions",
                "sessions",
                ErrorCode::Limit,
            ),
            (
                held.memory,
                more.memory,
                policy.total_memory,
                "bytes of arenas",
                "total_memory",
                ErrorCode::NoMemory,
            ),
            (
                held.endpoints,
                more.endpoints,
                policy.total_endpoints,
                "sources and sinks",
                "total_endpoints",
                ErrorCode::Limit,
            ),
            (
                held.descriptors,
                more.descriptors,
                policy.descriptors,
                "descriptors of the runtime",
                "descriptors",
                ErrorCode::Limit,
            ),
        ];
        for (held, more, most, what, key, code) in bounds {
            if more > 0 && held.saturating_add(more) > most {
                return Err(Failure::new(
                    code,
                    format!(
                        "tenant `{}` has {held} {what} and may have {most}, {more} more are too many: close some, or ask the operator to raise `{key}`",
                        policy.identity
                    ),
                ));
            }
        }
        let (all, most) = self.account.of_all();
        if more.memory > 0 && all.saturating_add(more.memory) > most {
            return Err(Failure::new(
                ErrorCode::NoMemory,
                format!(
                    "all tenants together have {all} bytes of arenas and may have {most}, three quarters of the node's memory, {} more are too many: close sessions, ask for smaller regions, or ask the operator to lower `total_memory` of others",
                    more.memory
                ),
            ));
        }
        Ok(())
    }

    /// The session has ended; what it holds is yet to be released.
    pub fn end_session(&mut self) {
        self.subtract(Usage {
            memory: 0,
            descriptors: 0,
            ..self.usage
        });
    }

    /// So much is released already.
    pub fn subtract(&mut self, less: Usage) {
        let less = Usage {
            sessions: less.sessions.min(self.usage.sessions),
            memory: less.memory.min(self.usage.memory),
            endpoints: less.endpoints.min(self.usage.endpoints),
            descriptors: less.descriptors.min(self.usage.descriptors),
        };
        self.usage.sessions -= less.sessions;
        self.usage.memory -= less.memory;
        self.usage.endpoints -= less.endpoints;
        self.usage.descriptors -= less.descriptors;
        self.account.change(less, |count, by| {
            count.fetch_sub(by, Ordering::Relaxed);
        });
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.subtract(self.usage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_sessions_hold_together_is_bounded_and_what_is_released_can_be_had_again() {
        let policy = Policy {
            identity: "press".into(),
            sessions: 2,
            total_memory: 100,
            ..Policy::default()
        };
        let account = Arc::new(Account::default());
        let mut first = Charge::session(&account, &policy).expect("room");
        let mut second = Charge::session(&account, &policy).expect("room");
        let third = Charge::session(&account, &policy).expect_err("the limit");
        assert_eq!(third.code, ErrorCode::Limit);
        assert!(
            third.message.contains("press") && third.message.contains("`sessions`"),
            "{third}"
        );
        let memory = |memory| Usage {
            memory,
            ..Usage::default()
        };
        first.add(&policy, memory(60)).expect("room");
        let refused = second.add(&policy, memory(41)).expect_err("the limit");
        assert_eq!(refused.code, ErrorCode::NoMemory);
        assert!(
            refused.message.contains("60") && refused.message.contains("`total_memory`"),
            "{refused}"
        );
        second.add(&policy, memory(40)).expect("room");
        drop(first);
        second.add(&policy, memory(60)).expect("room again");
        // Its place is free when it has ended, its memory when that is released.
        second.end_session();
        let held = account.usage();
        assert_eq!((held.sessions, held.memory), (0, 100));
        second.subtract(memory(1000));
        drop(second);
        assert_eq!(account.usage(), Usage::default());
    }

    #[test]
    fn tenants_together_leave_the_node_some_of_its_memory() {
        let policy = Policy {
            total_memory: 100,
            ..Policy::default()
        };
        let all = Memory::new(150);
        let accounts = [(); 2].map(|()| Account::within(&all));
        let [mut first, mut second] = accounts
            .each_ref()
            .map(|account| Charge::session(account, &policy).expect("room"));
        let memory = |memory| Usage {
            memory,
            ..Usage::default()
        };
        first.add(&policy, memory(100)).expect("room");
        let refused = second.add(&policy, memory(51)).expect_err("the bound");
        assert_eq!(refused.code, ErrorCode::NoMemory);
        assert!(
            refused.message.contains("all tenants") && refused.message.contains("150"),
            "{refused}"
        );
        second.add(&policy, memory(50)).expect("room");
        drop(first);
        second.add(&policy, memory(50)).expect("room again");
        drop(second);
        assert_eq!(accounts[0].of_all(), (0, 150));
    }
}
