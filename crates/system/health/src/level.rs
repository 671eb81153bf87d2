//! Warning levels: how a flow does beside its specification.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a flow does. Without a specification a flow has no level to rise from: it stays green.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Within its specification.
    #[default]
    Green,
    /// Near a limit.
    Yellow,
    /// Beyond a limit.
    Red,
}

impl Level {
    /// All, the best first.
    pub const ALL: [Self; 3] = [Self::Green, Self::Yellow, Self::Red];

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Green => "green",
            Self::Yellow => "yellow",
            Self::Red => "red",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A level with hysteresis: it rises at once, and falls one step when it was not called for as long as the hold time.
#[derive(Clone, Copy, Debug)]
pub struct Signal {
    level: Level,
    /// When yellow and red, or above, were last called for.
    called: [i64; 2],
}

impl Default for Signal {
    fn default() -> Self {
        Self {
            level: Level::Green,
            called: [i64::MIN; 2],
        }
    }
}

impl Signal {
    /// The present level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Takes what one packet, or a look at the clock, calls for. Returns the levels before and after if they differ.
    #[inline]
    pub fn call(&mut self, wanted: Level, now_ns: i64, hold_ns: i64) -> Option<(Level, Level)> {
        if wanted >= Level::Yellow {
            self.called[0] = now_ns;
        }
        if wanted == Level::Red {
            self.called[1] = now_ns;
        }
        let before = self.level;
        let recent = |called: i64| called != i64::MIN && now_ns.saturating_sub(called) < hold_ns;
        self.level = match before {
            _ if wanted >= before => wanted,
            Level::Red if recent(self.called[1]) => Level::Red,
            Level::Red | Level::Yellow if recent(self.called[0]) => Level::Yellow,
            Level::Red if wanted == Level::Yellow => Level::Yellow,
            _ => wanted,
        };
        (self.level != before).then_some((before, self.level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_rises_at_once_and_falls_by_steps_after_the_hold_time() {
        let mut signal = Signal::default();
        assert_eq!(
            signal.call(Level::Red, 0, 100),
            Some((Level::Green, Level::Red))
        );
        assert_eq!(signal.call(Level::Yellow, 60, 100), None);
        assert_eq!(signal.call(Level::Green, 99, 100), None);
        assert_eq!(
            signal.call(Level::Green, 100, 100),
            Some((Level::Red, Level::Yellow))
        );
        assert_eq!(signal.call(Level::Green, 159, 100), None);
        assert_eq!(
            signal.call(Level::Green, 160, 100),
            Some((Level::Yellow, Level::Green))
        );
    }

    #[test]
    fn a_flow_at_its_limit_does_not_flap() {
        let mut signal = Signal::default();
        let mut changes = 0;
        for step in 0..1000 {
            let wanted = if step % 2 == 0 {
                Level::Red
            } else {
                Level::Green
            };
            changes += u32::from(signal.call(wanted, step * 10, 100).is_some());
        }
        assert_eq!(changes, 1);
    }
}
