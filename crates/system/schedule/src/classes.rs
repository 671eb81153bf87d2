//! Which traffic class serves which priority.

use takt_time::TrafficClass;

/// The traffic class table of a port (IEEE 802.1Q-2022, clauses 8.6.6 and 12.6.3): the class whose queue frames of
/// each priority wait in. What a frame is marked with on the wire is its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassTable([TrafficClass; TrafficClass::COUNT]);

impl ClassTable {
    /// The table with these class numbers, by priority; `None`: one is no class.
    pub fn new(classes: [u8; TrafficClass::COUNT]) -> Option<Self> {
        let mut table = Self::default();
        for (place, number) in table.0.iter_mut().zip(classes) {
            *place = TrafficClass::new(number)?;
        }
        Some(table)
    }

    /// The class of a priority.
    #[inline]
    pub fn class(&self, priority: TrafficClass) -> TrafficClass {
        self.0[usize::from(priority.number())]
    }

    /// The class numbers by priority.
    pub fn numbers(&self) -> [u8; TrafficClass::COUNT] {
        self.0.map(TrafficClass::number)
    }
}

impl Default for ClassTable {
    /// Each priority has a class of its own.
    fn default() -> Self {
        let mut table = [TrafficClass::BEST_EFFORT; TrafficClass::COUNT];
        for (place, class) in table.iter_mut().zip(TrafficClass::all()) {
            *place = class;
        }
        Self(table)
    }
}
