//! Who gets the messages of a channel, in the order in which they came.
//!
//! Each member has a number that no other has had, so that a message that is given out over several rounds
//! goes on behind whom it was given last, whoever has come or gone since: who came after the message had
//! begun does not get it, who has gone is passed over, and nobody gets it twice.

/// Members with their numbers, in ascending order.
#[derive(Debug)]
pub struct Members<T> {
    list: Vec<(u64, T)>,
    next: u64,
}

/// Whom a message is still to be given to: members with numbers from `next` on, below `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rest {
    pub next: u64,
    pub end: u64,
}

impl Rest {
    /// Whether nobody is left.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next >= self.end
    }
}

impl<T> Default for Members<T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            next: 0,
        }
    }
}

impl<T: Copy + PartialEq> Members<T> {
    /// All that there are now.
    #[inline]
    pub fn all(&self) -> Rest {
        Rest {
            next: self.list.first().map_or(self.next, |(first, _)| *first),
            end: self.next,
        }
    }

    /// Adds a member behind all others.
    pub fn push(&mut self, member: T) {
        self.list.push((self.next, member));
        self.next += 1;
    }

    /// Removes those that do not satisfy the condition.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.list.retain(|(_, member)| keep(member));
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.list.iter().map(|(_, member)| *member)
    }

    /// Those of `rest` that are there, with their numbers.
    #[inline]
    pub fn of(&self, rest: Rest) -> &[(u64, T)] {
        let place = |number: u64| match self.list.first() {
            // How it is with a message that begins, and one that nobody has joined since.
            Some((first, _)) if number <= *first => 0,
            _ if number >= self.next => self.list.len(),
            _ => self.list.partition_point(|(other, _)| *other < number),
        };
        let from = place(rest.next);
        &self.list[from..place(rest.end).max(from)]
    }

    /// The number of a member.
    pub fn number_of(&self, member: T) -> Option<u64> {
        let found = self.list.iter().rev().find(|(_, known)| *known == member);
        found.map(|(number, _)| *number)
    }

    /// The member with this number, if it is there.
    pub fn get(&self, number: u64) -> Option<T> {
        let at = self.list.binary_search_by_key(&number, |(known, _)| *known);
        at.ok().map(|at| self.list[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whoever comes and goes between the steps of a message: each gets it at most once, and those that
        /// were there all the time exactly once.
        #[test]
        fn a_message_given_out_step_by_step_reaches_all_who_stay_and_nobody_twice(
            before in 0u32..20,
            acts in proptest::collection::vec((any::<bool>(), any::<u32>()), 0..60),
        ) {
            let mut members = Members::default();
            (0..before).for_each(|member| members.push(member));
            let mut rest = members.all();
            let mut got = Vec::new();
            let mut gone = Vec::new();
            for (come, which) in acts {
                if come {
                    members.push(1000 + which % 1000 + members.all().end as u32 * 2000);
                } else {
                    let victim = which % before.max(1);
                    members.retain(|member| *member != victim);
                    gone.push(victim);
                }
                if let Some(&(number, member)) = members.of(rest).first() {
                    prop_assert_eq!(members.get(number), Some(member));
                    got.push(member);
                    rest.next = number + 1;
                }
            }
            got.extend(members.of(rest).iter().map(|(_, member)| *member));
            let mut once = got.clone();
            once.sort_unstable();
            once.dedup();
            prop_assert_eq!(once.len(), got.len());
            prop_assert!(got.iter().all(|member| *member < before));
            let stayed: Vec<u32> = (0..before).filter(|member| !gone.contains(member)).collect();
            prop_assert!(stayed.iter().all(|member| got.contains(member)));
        }
    }
}
