//! VLAN tags (IEEE 802.1Q-2022, clause 9).
//!
//! A tag sits between the addresses and the EtherType of a frame: its protocol identifier takes the
//! EtherType's place, followed by 16 bits of tag control information and the EtherType proper.
//! [`parse`] reads up to two of them, the usual service and customer tag. Tags are written as
//! customer tags only.

use crate::ethernet::EtherType;

/// Bytes of tag control information and of the EtherType behind it.
pub const TAG_LEN: usize = 4;

/// Why tags are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The frame ends inside a tag.
    #[error("{0} bytes are left for a VLAN tag of {TAG_LEN}")]
    Truncated(usize),
    /// The VLAN identifier 4095 is reserved and never on a wire (clause 9.6).
    #[error("VLAN identifier 4095 is reserved, 0 to 4094 are valid")]
    ReservedId,
    /// More than two tags.
    #[error("a third VLAN tag {0}, at most 2 are read")]
    TooDeep(EtherType),
}

/// Tag control information: a VLAN and a priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTag {
    control: u16,
}

impl VlanTag {
    /// The tag of VLAN `id` with priority code point `priority`; `None` if `id` is above 4094 or
    /// `priority` above 7. Identifier 0 says that the tag carries a priority and no VLAN.
    pub const fn new(id: u16, priority: u8, drop_eligible: bool) -> Option<Self> {
        if id > 4094 || priority > 7 {
            return None;
        }
        Some(Self {
            control: (priority as u16) << 13 | (drop_eligible as u16) << 12 | id,
        })
    }

    /// The tag with this tag control information.
    ///
    /// # Errors
    /// [`Error::ReservedId`].
    #[inline]
    pub const fn from_control(control: u16) -> Result<Self, Error> {
        match control & 0xfff {
            0xfff => Err(Error::ReservedId),
            _ => Ok(Self { control }),
        }
    }

    /// The tag control information as on the wire.
    #[inline]
    pub const fn control(self) -> u16 {
        self.control
    }

    /// The VLAN identifier, 0 to 4094; 0 means no VLAN.
    #[inline]
    pub const fn id(self) -> u16 {
        self.control & 0xfff
    }

    /// The priority code point, 0 to 7.
    #[inline]
    pub const fn priority(self) -> u8 {
        (self.control >> 13) as u8
    }

    /// Whether the frame may be dropped before others.
    #[inline]
    pub const fn drop_eligible(self) -> bool {
        self.control & 0x1000 != 0
    }

    /// Writes the tag as it follows the protocol identifier: control information, then the
    /// EtherType of the payload.
    #[inline]
    pub fn emit(self, ether_type: EtherType, tag: &mut [u8; TAG_LEN]) {
        tag[0..2].copy_from_slice(&self.control.to_be_bytes());
        tag[2..4].copy_from_slice(&ether_type.0.to_be_bytes());
    }
}

/// The tags of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum VlanTags {
    /// An untagged frame.
    #[default]
    None,
    /// One tag.
    Single(VlanTag),
    /// Two tags.
    Double {
        /// The first one, of the service provider.
        outer: VlanTag,
        /// The second one, of the customer.
        inner: VlanTag,
    },
}

/// Skips up to two tags: from the EtherType and payload of an Ethernet header to the tags, the
/// EtherType and the payload behind them.
///
/// # Errors
/// [`Error`]; both protocol identifiers are taken in both places, as deployed bridges do.
#[inline]
pub fn parse(ether_type: EtherType, payload: &[u8]) -> Result<(VlanTags, EtherType, &[u8]), Error> {
    if !ether_type.is_tag() {
        return Ok((VlanTags::None, ether_type, payload));
    }
    let (outer, ether_type, payload) = parse_tag(payload)?;
    if !ether_type.is_tag() {
        return Ok((VlanTags::Single(outer), ether_type, payload));
    }
    let (inner, ether_type, payload) = parse_tag(payload)?;
    if ether_type.is_tag() {
        return Err(Error::TooDeep(ether_type));
    }
    Ok((VlanTags::Double { outer, inner }, ether_type, payload))
}

#[inline]
fn parse_tag(bytes: &[u8]) -> Result<(VlanTag, EtherType, &[u8]), Error> {
    let Some(([c0, c1, e0, e1], rest)) = bytes.split_first_chunk::<TAG_LEN>() else {
        return Err(Error::Truncated(bytes.len()));
    };
    let tag = VlanTag::from_control(u16::from_be_bytes([*c0, *c1]))?;
    Ok((tag, EtherType(u16::from_be_bytes([*e0, *e1])), rest))
}
