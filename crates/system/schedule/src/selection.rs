//! How a class chooses among its frames: its transmission selection algorithm.

use std::fmt;
use std::num::NonZero;

use takt_time::TrafficClass;

use crate::discipline::Credit;
use crate::link::Link;

/// The transmission selection algorithm of a class (IEEE 802.1Q-2022, clauses 8.6.8 and 12.20.2). Between classes
/// strict priority holds in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// Frames with a launch time leave at it, others as soon as they can (clause 8.6.8.4 and Linux's `etf`).
    #[default]
    LaunchTime,
    /// Each tenant's frames leave as they came; a launch time is refused.
    FirstCome,
    /// The credit-based shaper (clause 8.6.8.2, 802.1Qav) over first come.
    CreditBased {
        /// `adminIdleSlope`: bits per second of the link, with preamble, FCS and gap.
        idle_slope_bps: u64,
        /// `hiCredit`, bits; 0: what one frame of [`LARGEST_FRAME`] octets of other classes lets it gather (annex L).
        high_credit_bits: u64,
    },
}

/// The largest frame that a class may have to wait for, octets on the link with preamble and gap.
pub const LARGEST_FRAME: u64 = 1542;

impl Selection {
    /// Its name in every form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::LaunchTime => "launch-time",
            Self::FirstCome => "first-come",
            Self::CreditBased { .. } => "credit-based",
        }
    }

    /// The shaper on a link; `None`: it shapes nothing.
    pub fn credit(self, link: &Link) -> Option<Credit> {
        let Self::CreditBased {
            idle_slope_bps,
            high_credit_bits,
        } = self
        else {
            return None;
        };
        let rate = link.rate_bps.map_or(idle_slope_bps, NonZero::get).max(1);
        let gathered = LARGEST_FRAME * 8 * idle_slope_bps.min(rate) / rate;
        Some(Credit {
            idle_slope_bps,
            high_credit_bits: match high_credit_bits {
                0 => gathered,
                bits => bits,
            },
        })
    }

    /// Whether frames with a launch time are taken.
    pub fn honours_launch_time(self) -> bool {
        self == Self::LaunchTime
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why classes cannot be served as asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectionError {
    /// Credit is counted in bits of a link without a rate.
    #[error("class {0} is credit-based, and the rate of the link is unknown: tell it (`--rate`)")]
    NoRate(TrafficClass),
    /// No bandwidth.
    #[error(
        "class {0} is credit-based with an idle slope of 0, so it could never send: give it bandwidth"
    )]
    NoBandwidth(TrafficClass),
    /// The classes are promised more than there is.
    #[error(
        "the idle slopes of all credit-based classes are {asked} bit/s together, the link has {rate}: lower them"
    )]
    TooMuch {
        /// The sum.
        asked: u64,
        /// The link's rate.
        rate: u64,
    },
}

impl SelectionError {
    /// A short name that stays the same, as those of [`Finding`](crate::check::Finding)s.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoRate(_) => "credit-without-rate",
            Self::NoBandwidth(_) => "credit-without-bandwidth",
            Self::TooMuch { .. } => "credit-exceeds-link",
        }
    }
}

/// Whether classes can be served so on a link.
///
/// # Errors
/// The first thing that is impossible.
pub fn check(
    selection: &[Selection; TrafficClass::COUNT],
    link: &Link,
) -> Result<(), SelectionError> {
    let mut sum = 0u64;
    for (class, selection) in TrafficClass::all().zip(selection) {
        let Selection::CreditBased { idle_slope_bps, .. } = *selection else {
            continue;
        };
        let Some(rate) = link.rate_bps.map(NonZero::get) else {
            return Err(SelectionError::NoRate(class));
        };
        if idle_slope_bps == 0 {
            return Err(SelectionError::NoBandwidth(class));
        }
        sum = sum.saturating_add(idle_slope_bps);
        if sum > rate {
            return Err(SelectionError::TooMuch { asked: sum, rate });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPED: Selection = Selection::CreditBased {
        idle_slope_bps: 600_000_000,
        high_credit_bits: 0,
    };

    fn with(classes: &[(usize, Selection)]) -> [Selection; 8] {
        let mut all = [Selection::default(); 8];
        classes.iter().for_each(|(at, one)| all[*at] = *one);
        all
    }

    #[test]
    fn classes_get_no_more_than_the_link_has_and_no_credit_without_a_rate() {
        let link = Link::ethernet(1_000_000_000);
        assert_eq!(
            check(&with(&[(6, SHAPED), (5, Selection::FirstCome)]), &link),
            Ok(())
        );
        let both = with(&[(6, SHAPED), (5, SHAPED)]);
        let asked = 1_200_000_000;
        let rate = 1_000_000_000;
        assert_eq!(
            check(&both, &link),
            Err(SelectionError::TooMuch { asked, rate })
        );
        let class = TrafficClass::new(6).expect("below 8");
        let one = with(&[(6, SHAPED)]);
        assert_eq!(
            check(&one, &Link::ethernet(0)),
            Err(SelectionError::NoRate(class))
        );
        let nothing = Selection::CreditBased {
            idle_slope_bps: 0,
            high_credit_bits: 1,
        };
        let refused = check(&with(&[(6, nothing)]), &link);
        assert_eq!(refused, Err(SelectionError::NoBandwidth(class)));
    }

    #[test]
    fn the_usual_high_credit_is_what_the_largest_frame_of_others_lets_it_gather() {
        let credit = SHAPED
            .credit(&Link::ethernet(1_000_000_000))
            .expect("shaped");
        assert_eq!(credit.high_credit_bits, 1542 * 8 * 6 / 10);
        assert_eq!(Selection::FirstCome.credit(&Link::ethernet(1)), None);
    }
}
