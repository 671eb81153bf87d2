//! How long a frame occupies the wire.
//!
//! The guard band before a gate closes follows from this: a frame may start only if its last bit is
//! out before the gate closes (IEEE 802.1Q-2022, clause 8.6.8.4), so a short frame may start later
//! than a long one. The inter-frame gap after it keeps the link busy but needs no open gate.

use std::num::NonZeroU64;

/// What a medium adds to the octets of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Octets between the first octet of a frame and its service data unit, which is what
    /// `queueMaxSDU` counts: 14 for Ethernet, 18 where frames already carry a VLAN tag.
    pub header: u32,
    /// Preamble and start delimiter.
    pub preamble: u32,
    /// Octets added below the scheduler inside the frame: 4 where the port inserts a VLAN tag, 50 or
    /// 54 where it encapsulates in VXLAN.
    pub inserted: u32,
    /// Frame check sequence.
    pub check_sequence: u32,
    /// Shorter frames are padded to this length, with the frame check sequence.
    pub minimum: u32,
    /// Inter-frame gap.
    pub gap: u32,
}

impl Framing {
    /// Ethernet: 8 octets of preamble, 4 of FCS, at least 64 in all, a gap of 12.
    pub const ETHERNET: Self = Self {
        header: 14,
        preamble: 8,
        inserted: 0,
        check_sequence: 4,
        minimum: 64,
        gap: 12,
    };

    /// This framing with a VLAN tag that the port inserts.
    #[must_use]
    pub const fn with_vlan_tag(self) -> Self {
        Self {
            inserted: self.inserted + 4,
            ..self
        }
    }
}

/// A link's rate and framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Bits per second; `None` where frames take no time (a virtual link without a rate).
    pub rate_bps: Option<NonZeroU64>,
    /// What the medium adds.
    pub framing: Framing,
}

impl Link {
    /// An Ethernet link of `rate_bps` bits per second; 0 for one without a rate.
    pub const fn ethernet(rate_bps: u64) -> Self {
        Self {
            rate_bps: NonZeroU64::new(rate_bps),
            framing: Framing::ETHERNET,
        }
    }

    /// The same, whose port inserts a VLAN tag if `vlan`.
    pub const fn tagged(rate_bps: u64, vlan: bool) -> Self {
        let link = Self::ethernet(rate_bps);
        match vlan {
            true => Self {
                framing: link.framing.with_vlan_tag(),
                ..link
            },
            false => link,
        }
    }

    /// Octets on the wire of a frame of `len` octets (from its destination address, without FCS),
    /// from the preamble to the FCS.
    pub const fn wire_octets(&self, len: u32) -> u64 {
        let framing = self.framing;
        let frame = len as u64 + framing.inserted as u64 + framing.check_sequence as u64;
        let minimum = framing.minimum as u64;
        framing.preamble as u64 + if frame < minimum { minimum } else { frame }
    }

    /// Nanoseconds from the first bit of a frame's preamble to the last of its FCS, rounded up: how
    /// long its gate must stay open.
    pub const fn transmission_ns(&self, len: u32) -> u64 {
        self.duration_ns(self.wire_octets(len))
    }

    /// Nanoseconds until the next frame may begin, rounded up: the transmission and the gap.
    pub const fn occupancy_ns(&self, len: u32) -> u64 {
        self.duration_ns(self.wire_octets(len) + self.framing.gap as u64)
    }

    /// Nanoseconds that `octets` take, rounded up.
    pub const fn duration_ns(&self, octets: u64) -> u64 {
        match self.rate_bps {
            None => 0,
            // Below 2 GiB the product fits 64 bits, whose division is quicker.
            Some(rate) if octets < 1 << 31 => (octets * 8_000_000_000).div_ceil(rate.get()),
            Some(rate) => {
                let ns = (octets as u128 * 8_000_000_000).div_ceil(rate.get() as u128);
                if ns > u64::MAX as u128 {
                    u64::MAX
                } else {
                    ns as u64
                }
            }
        }
    }

    /// The longest frame, in octets without FCS, whose transmission fits `duration_ns`; 0 if none.
    pub fn longest_frame(&self, duration_ns: u64) -> u32 {
        let Some(rate) = self.rate_bps else {
            return u32::MAX;
        };
        let octets = u128::from(duration_ns) * u128::from(rate.get()) / 8_000_000_000;
        let framing = self.framing;
        if octets < u128::from(self.wire_octets(0)) {
            return 0;
        }
        let around = framing.preamble + framing.inserted + framing.check_sequence;
        u32::try_from(octets - u128::from(around)).unwrap_or(u32::MAX)
    }
}

/// Bits per second as tc writes them: `100mbit`, `1gbit`, `2500000000`, with `/s` or without.
pub fn rate(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let number = lower.trim_end_matches("bit/s").trim_end_matches("bit");
    let (digits, factor) = match number.char_indices().next_back() {
        Some((at, 'k')) => (&number[..at], 1_000),
        Some((at, 'm')) => (&number[..at], 1_000_000),
        Some((at, 'g')) => (&number[..at], 1_000_000_000),
        _ => (number, 1),
    };
    let number: u64 = digits.parse().ok()?;
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GIGABIT: Link = Link::ethernet(1_000_000_000);

    #[test]
    fn rates_are_read_as_tc_writes_them() {
        for (text, expected) in [
            ("1gbit", Some(1_000_000_000)),
            ("100Mbit", Some(100_000_000)),
            ("10m", Some(10_000_000)),
            ("64kbit/s", Some(64_000)),
            ("5", Some(5)),
            ("0", Some(0)),
            ("", None),
            ("gbit", None),
            ("1.5gbit", None),
            ("-1", None),
            ("1tbit", None),
            ("99999999999gbit", None),
        ] {
            assert_eq!(rate(text), expected, "{text}");
        }
    }

    #[test]
    fn a_full_ethernet_frame_takes_12_304_ns_at_a_gigabit() {
        // 14 + 1500 + 4 octets and 8 of preamble are 1526; the gap makes 1538.
        assert_eq!(GIGABIT.transmission_ns(1514), 1526 * 8);
        assert_eq!(GIGABIT.occupancy_ns(1514), 1538 * 8);
    }

    #[test]
    fn a_short_frame_is_padded_to_64_octets() {
        assert_eq!(GIGABIT.transmission_ns(1), (64 + 8) * 8);
        assert_eq!(GIGABIT.occupancy_ns(60), 84 * 8);
        assert_eq!(GIGABIT.occupancy_ns(61), 85 * 8);
    }

    #[test]
    fn an_inserted_vlan_tag_counts_towards_the_length_and_the_minimum() {
        let tagged = Link {
            framing: Framing::ETHERNET.with_vlan_tag(),
            ..GIGABIT
        };
        assert_eq!(tagged.transmission_ns(1514), 1530 * 8);
        assert_eq!(tagged.occupancy_ns(56), 84 * 8);
    }

    #[test]
    fn durations_are_rounded_up() {
        assert_eq!(Link::ethernet(10_000_000_000).transmission_ns(1514), 1221);
        assert_eq!(Link::ethernet(3).duration_ns(1), 2_666_666_667);
    }

    #[test]
    fn the_longest_durations_are_held_at_the_end_of_the_range() {
        assert_eq!(Link::ethernet(1).duration_ns(u64::MAX), u64::MAX);
        assert_eq!(GIGABIT.duration_ns(1 << 31), (1 << 31) * 8);
    }

    #[test]
    fn a_link_without_a_rate_takes_no_time() {
        assert_eq!(Link::ethernet(0).occupancy_ns(u32::MAX), 0);
        assert_eq!(Link::ethernet(0).longest_frame(0), u32::MAX);
    }

    proptest! {
        #[test]
        fn the_longest_frame_fits_and_one_octet_more_does_not(
            rate in 1_000_000u64..400_000_000_000,
            duration in 0u64..10_000_000,
        ) {
            let link = Link::ethernet(rate);
            match link.longest_frame(duration) {
                0 => prop_assert!(link.transmission_ns(0) > duration),
                longest => {
                    prop_assert!(link.transmission_ns(longest) <= duration);
                    prop_assert!(longest < 60 || link.transmission_ns(longest + 1) > duration);
                }
            }
        }
    }
}
