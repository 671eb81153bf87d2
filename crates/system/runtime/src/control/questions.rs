//! Questions of tenants that wait for the kernel: a part of the control thread that says which of them are looked at again.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use takt_session::{ErrorCode, Failure};

use crate::ids::SessionId;

/// Questions of a tenant that wait for the kernel, of all its sessions.
const MOST_QUESTIONS: usize = 64;
/// How long they wait: then what is known is the answer.
pub(super) const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A tenant's question which station its frames are for, see [`Control::resolve`](super::Control::resolve).
pub(super) struct Question {
    pub(super) tenant: u32,
    pub(super) session: SessionId,
    pub(super) request: u32,
    pub(super) destination: IpAddr,
    pub(super) next_hop: IpAddr,
    pub(super) known: Option<[u8; 6]>,
    /// The look at the host's tables that it waits for.
    pub(super) look: Option<u64>,
    /// [`ANSWER_WITHIN`] after it was asked.
    pub(super) until: Duration,
}

/// Those that wait.
#[derive(Default)]
pub(super) struct Questions {
    /// By number, in the order in which they were asked: that of their ends.
    waiting: BTreeMap<u64, Question>,
    next: u64,
    of_tenants: HashMap<u32, usize>,
    /// From this number on they are to be looked at again, since the kernel has told more.
    pass: Option<u64>,
    /// Since then it has told even more.
    again: bool,
}

impl Questions {
    /// A question waits.
    ///
    /// # Errors
    /// Too many of its tenant do.
    pub(super) fn keep(&mut self, question: Question) -> Result<(), Failure> {
        let of_tenant = self.of_tenants.get(&question.tenant);
        if of_tenant.is_some_and(|waiting| *waiting >= MOST_QUESTIONS) {
            return Err(Failure::new(
                ErrorCode::Limit,
                format!(
                    "{MOST_QUESTIONS} questions of this tenant's sessions wait for the kernel, its limit: ask again when they are answered"
                ),
            ));
        }
        let number = self.next;
        self.next += 1;
        self.put_back(number, question);
        Ok(())
    }

    /// A question that was [taken](Self::take) waits on.
    pub(super) fn put_back(&mut self, number: u64, question: Question) {
        *self.of_tenants.entry(question.tenant).or_default() += 1;
        self.waiting.insert(number, question);
    }

    /// The kernel has told more: all are to be looked at again.
    pub(super) fn reconsider(&mut self) {
        match self.pass {
            Some(_) => self.again = true,
            None => self.pass = Some(0),
        }
    }

    /// Takes the next one that is to be looked at, with its number: one that has waited for too long, or one that the kernel may
    /// have told enough for. `looks`: how many looks at the host's tables are over.
    pub(super) fn take(&mut self, looks: u64, now: Duration) -> Option<(u64, Question)> {
        let first = self.waiting.first_key_value();
        if let Some((&number, _)) = first.filter(|(_, first)| first.until <= now) {
            return self.take_out(number);
        }
        while let Some(from) = self.pass {
            let mut rest = self.waiting.range(from..);
            let ready = |question: &Question| question.look.is_none_or(|look| looks >= look);
            match rest.find(|(_, question)| ready(question)) {
                Some((&number, _)) => {
                    self.pass = Some(number + 1);
                    return self.take_out(number);
                }
                None => self.pass = std::mem::take(&mut self.again).then_some(0),
            }
        }
        None
    }

    fn take_out(&mut self, number: u64) -> Option<(u64, Question)> {
        let question = self.waiting.remove(&number)?;
        if let Some(waiting) = self.of_tenants.get_mut(&question.tenant) {
            *waiting -= 1;
            if *waiting == 0 {
                self.of_tenants.remove(&question.tenant);
            }
        }
        Some((number, question))
    }

    /// Whether some are still to be looked at again.
    pub(super) fn are_behind(&self) -> bool {
        self.pass.is_some()
    }

    /// Whether one waits for another look than those that are over.
    pub(super) fn want_a_look(&self, looks: u64) -> bool {
        let mut waiting = self.waiting.values();
        waiting.any(|question| question.look.is_some_and(|look| looks < look))
    }

    /// When the first of them has waited for too long.
    pub(super) fn due(&self) -> Option<Duration> {
        let first = self.waiting.first_key_value();
        first.map(|(_, question)| question.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(tenant: u32, session: u32, at: u64) -> Question {
        Question {
            tenant,
            session: SessionId(session),
            request: 0,
            destination: [10, 0, 0, 9].into(),
            next_hop: [10, 0, 0, 1].into(),
            known: None,
            look: None,
            until: Duration::from_secs(at) + ANSWER_WITHIN,
        }
    }

    /// Looks at all that are to be looked at, none of which is answered: their sessions.
    fn pass(questions: &mut Questions, looks: u64, now: u64) -> Vec<u32> {
        let now = Duration::from_secs(now);
        let taken = std::iter::from_fn(|| {
            let (number, question) = questions.take(looks, now)?;
            let session = question.session.0;
            questions.put_back(number, question);
            Some(session)
        });
        taken.collect()
    }

    #[test]
    fn the_sessions_of_a_tenant_ask_no_more_together_than_one_may() {
        let mut questions = Questions::default();
        for number in 0..MOST_QUESTIONS as u32 {
            let kept = questions.keep(question(1, number % 2, 0));
            assert!(kept.is_ok(), "{number}");
        }
        for session in [0, 1, 2] {
            let refused = questions.keep(question(1, session, 0));
            assert_eq!(
                refused.map_err(|failure| failure.code),
                Err(ErrorCode::Limit)
            );
        }
        assert!(questions.keep(question(2, 9, 0)).is_ok(), "another tenant");
        // One less, one more.
        questions.reconsider();
        assert!(questions.take(0, Duration::ZERO).is_some());
        assert!(questions.keep(question(1, 2, 0)).is_ok());
        assert!(questions.keep(question(1, 2, 0)).is_err());
    }

    #[test]
    fn questions_are_looked_at_again_when_the_kernel_has_told_more_and_not_before() {
        let mut questions = Questions::default();
        for session in 0..3 {
            questions.keep(question(1, session, 0)).expect("room");
        }
        let look = Some(2);
        let waits = Question {
            look,
            ..question(1, 3, 1)
        };
        questions.keep(waits).expect("room");
        for _ in 0..100 {
            assert!(pass(&mut questions, 0, 0).is_empty());
        }
        questions.reconsider();
        assert_eq!(pass(&mut questions, 1, 0), [0, 1, 2]);
        assert!(questions.want_a_look(1));
        assert!(pass(&mut questions, 2, 0).is_empty(), "once");
        // What is told during a pass is not missed; what is carried over is looked at later.
        questions.reconsider();
        let (number, first) = questions.take(2, Duration::ZERO).expect("one");
        questions.put_back(number, first);
        assert!(questions.are_behind());
        questions.reconsider();
        assert_eq!(pass(&mut questions, 2, 0), [1, 2, 3, 0, 1, 2, 3]);
        assert!(!questions.are_behind() && !questions.want_a_look(2));
        // Whoever has waited for too long is answered in any case.
        assert_eq!(questions.due(), Some(ANSWER_WITHIN));
        for session in 0..3 {
            let taken = questions.take(2, ANSWER_WITHIN);
            assert_eq!(taken.map(|(_, taken)| taken.session.0), Some(session));
        }
        assert!(questions.take(2, ANSWER_WITHIN).is_none());
    }
}
