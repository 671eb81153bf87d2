//! Tables in which each kind of entry has a kind of place of its own: none is asked for what is at a place of another.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// A place in a [`Table`], or in [`Slots`].
pub trait Slot: Copy {
    fn new(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! slots {
    ($($(#[$about:meta])* $name:ident)*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub usize);

        impl Slot for $name {
            #[inline]
            fn new(index: usize) -> Self {
                Self(index)
            }

            #[inline]
            fn index(self) -> usize {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

slots! {
    /// A session on its lane.
    SessionSlot
    /// A tenant on a lane.
    TenantSlot
    /// A channel on a lane.
    ChannelSlot
    /// A peer of the node.
    PeerSlot
    /// A remote lane on a lane.
    RemoteSlot
    /// A reliable source of a lane.
    OutboundSlot
    /// A reliable source of another node that a lane has sinks of.
    InboundSlot
    /// A stream of a session.
    StreamSlot
    /// A source of a session.
    SourceSlot
    /// A sink of a session.
    SinkSlot
}

/// Entries at places that are given again once they are free.
#[derive(Debug)]
pub struct Table<S, T> {
    slab: Slab<T>,
    slot: PhantomData<fn() -> S>,
}

impl<S, T> Default for Table<S, T> {
    fn default() -> Self {
        Self {
            slab: Slab::new(),
            slot: PhantomData,
        }
    }
}

impl<S: Slot, T> Table<S, T> {
    pub fn insert(&mut self, entry: T) -> S {
        S::new(self.slab.insert(entry))
    }

    #[inline]
    pub fn get(&self, at: S) -> Option<&T> {
        self.slab.get(at.index())
    }

    #[inline]
    pub fn get_mut(&mut self, at: S) -> Option<&mut T> {
        self.slab.get_mut(at.index())
    }

    /// Two different entries, if both are there.
    #[inline]
    pub fn get_two_mut(&mut self, one: S, other: S) -> Option<(&mut T, &mut T)> {
        self.slab.get2_mut(one.index(), other.index())
    }

    /// Takes an entry out, if there is one.
    pub fn remove(&mut self, at: S) -> Option<T> {
        self.slab.try_remove(at.index())
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// How many places there is room for: those of all entries are among them.
    pub fn capacity(&self) -> usize {
        self.slab.capacity()
    }

    /// In the order of their places.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (S, &T)> {
        self.slab.iter().map(|(at, entry)| (S::new(at), entry))
    }

    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (S, &mut T)> {
        self.slab.iter_mut().map(|(at, entry)| (S::new(at), entry))
    }
}

impl<S: Slot, T> Index<S> for Table<S, T> {
    type Output = T;

    #[inline]
    fn index(&self, at: S) -> &T {
        &self.slab[at.index()]
    }
}

impl<S: Slot, T> IndexMut<S> for Table<S, T> {
    #[inline]
    fn index_mut(&mut self, at: S) -> &mut T {
        &mut self.slab[at.index()]
    }
}

/// Entries that keep the places that they were given: by the control thread, and by lanes after it.
#[derive(Debug)]
pub struct Slots<S, T> {
    list: Vec<Option<T>>,
    slot: PhantomData<fn() -> S>,
}

impl<S, T> Default for Slots<S, T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            slot: PhantomData,
        }
    }
}

impl<S: Slot, T> Slots<S, T> {
    /// Puts an entry at its place.
    pub fn put(&mut self, at: S, entry: T) {
        if self.list.len() <= at.index() {
            self.list.resize_with(at.index() + 1, || None);
        }
        self.list[at.index()] = Some(entry);
    }

    /// Puts an entry at the first free place; `None` if `most` are taken.
    pub fn insert(&mut self, entry: T, most: usize) -> Option<S> {
        let free = self.list.iter().position(Option::is_none);
        let at = free.unwrap_or(self.list.len());
        (at < most).then(|| {
            self.put(S::new(at), entry);
            S::new(at)
        })
    }

    #[inline]
    pub fn get(&self, at: S) -> Option<&T> {
        self.list.get(at.index())?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, at: S) -> Option<&mut T> {
        self.list.get_mut(at.index())?.as_mut()
    }

    /// Takes an entry out, if there is one.
    pub fn remove(&mut self, at: S) -> Option<T> {
        self.list.get_mut(at.index())?.take()
    }

    /// Takes all out.
    pub fn take_all(&mut self) -> Vec<T> {
        self.list.iter_mut().filter_map(Option::take).collect()
    }

    /// All places, from the first to the last that an entry has ever been at.
    #[inline]
    pub fn places(&self) -> impl Iterator<Item = S> + use<S, T> {
        (0..self.list.len()).map(S::new)
    }

    /// How many places these are.
    #[inline]
    pub fn count(&self) -> usize {
        self.list.len()
    }

    /// Nothing is at any.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.list.iter().all(Option::is_none)
    }

    /// Those that there are, with their places.
    #[inline]
    pub fn entries(&self) -> impl Iterator<Item = (S, &T)> {
        let entries = self.list.iter().enumerate();
        entries.filter_map(|(at, entry)| Some((S::new(at), entry.as_ref()?)))
    }

    #[inline]
    pub fn entries_mut(&mut self) -> impl Iterator<Item = (S, &mut T)> {
        let entries = self.list.iter_mut().enumerate();
        entries.filter_map(|(at, entry)| Some((S::new(at), entry.as_mut()?)))
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.list.iter().flatten()
    }

    #[inline]
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.list.iter_mut().flatten()
    }
}
