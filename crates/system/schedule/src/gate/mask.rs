//! The states of the eight gates of a port as one octet.

use std::fmt;

use takt_time::TrafficClass;

/// Which gates are open: bit 7 is traffic class 7, bit 0 class 0; a 1 is open (IEEE 802.1Q-2022,
/// clause 12.29.1.2.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct GateMask(u8);

impl GateMask {
    /// Every gate open: the default of `AdminGateStates`.
    pub const ALL: Self = Self(0xff);
    /// Every gate closed.
    pub const NONE: Self = Self(0);

    /// The states in `bits`.
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The states as an octet.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// Whether the gate of `class` is open.
    pub const fn is_open(self, class: TrafficClass) -> bool {
        self.0 & (1 << class.number()) != 0
    }

    /// These states with the gate of `class` open.
    #[must_use]
    pub const fn with_open(self, class: TrafficClass) -> Self {
        Self(self.0 | 1 << class.number())
    }

    /// The classes with an open gate, lowest first.
    pub fn classes(self) -> impl Iterator<Item = TrafficClass> {
        TrafficClass::all().filter(move |class| self.is_open(*class))
    }
}

impl FromIterator<TrafficClass> for GateMask {
    fn from_iter<I: IntoIterator<Item = TrafficClass>>(classes: I) -> Self {
        classes.into_iter().fold(Self::NONE, Self::with_open)
    }
}

impl fmt::Display for GateMask {
    /// `all`, `none`, or the open classes from the highest down: `7,1,0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("all"),
            Self::NONE => f.write_str("none"),
            _ => {
                let mut separator = "";
                for number in (0..8).rev().filter(|number| self.0 & (1 << number) != 0) {
                    write!(f, "{separator}{number}")?;
                    separator = ",";
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_significant_bit_is_class_7() {
        let seven = TrafficClass::new(7).unwrap_or_default();
        assert!(GateMask::from_bits(0x80).is_open(seven));
        assert!(!GateMask::from_bits(0x7f).is_open(seven));
        assert_eq!(GateMask::NONE.with_open(seven).bits(), 0x80);
    }

    #[test]
    fn states_are_shown_as_class_numbers_from_the_highest() {
        assert_eq!(GateMask::from_bits(0x83).to_string(), "7,1,0");
        assert_eq!(GateMask::ALL.to_string(), "all");
        assert_eq!(GateMask::NONE.to_string(), "none");
    }

    #[test]
    fn a_mask_is_the_set_of_its_classes() {
        let mask = GateMask::from_bits(0b0101_1010);
        assert_eq!(mask.classes().collect::<GateMask>(), mask);
    }
}
