//! Publish and subscribe by topic (naaas-thesis-2024, section 6.3.4: LunarMoM), on nothing but the channel API.
//!
//! A [`Participant`] is a program's place among the others. Its [`Publisher`]s write topics, its [`Subscriber`]s read them,
//! on this node or elsewhere; both work in place, as the channels below them do. A topic is a channel whose number is a
//! hash of its name, and each of its messages carries a second one: what another topic with the same channel writes is
//! refused and counted, not delivered.
//!
//! ```no_run
//! use takt::{Qos, Session, Wait};
//! use takt_messaging::Participant;
//!
//! let participant = Participant::new(Session::open()?)?;
//! let publisher = participant.publisher("plant/7/temperature", Qos::fast())?;
//! let subscriber = participant.subscriber("plant/*/temperature", Qos::fast())?;
//!
//! publisher.publish(b"21.5", Wait::Forever)?;
//! let sample = subscriber.take(Wait::Forever)?;
//! assert_eq!((sample.topic(), &*sample), ("plant/7/temperature", &b"21.5"[..]));
//! # Ok::<(), takt_messaging::Error>(())
//! ```
//!
//! # Delivery
//! A topic's messages are delivered as its publishers' [`Qos`](takt::Qos) says: once, or reliably, or reliably within a
//! deadline, with what is to happen about slow subscribers. Subscribers get what publishers promise, whatever their own
//! `Qos` asks for.
//!
//! # Who is there
//! Participants tell each other which topics they write and read, on the channel that is named [`DIRECTORY`]. That is what
//! patterns, history for late joiners and `takt topic list` rest on; publishers and subscribers of a whole name need
//! nothing of it. A tenant whose policy does not let it read and write that channel does without them, and is told so.
//! What the directory says is hearsay: any program that may write the channel can say anything. Nothing but lists,
//! patterns and history follows it.
//!
//! # Threads
//! A [`Participant`] is shared freely and has a thread of its own. A [`Publisher`] or [`Subscriber`] may move between
//! threads, and one thread at a time uses it.

#![forbid(unsafe_code)]

mod directory;
mod error;
mod header;
mod history;
mod participant;
mod publisher;
mod subscriber;
mod topic;

pub use directory::{DIRECTORY, Role, Topic};
pub use error::Error;
pub use header::Encoding;
pub use participant::{Participant, ParticipantBuilder};
pub use publisher::{DEPTH, Publisher, PublisherOptions};
pub use subscriber::{
    Sample, Subscriber, SubscriberCounters, SubscriberOptions, SubscriberTask, SubscriberWaker,
};
pub use topic::BadTopic;

#[doc(hidden)] // for its fuzz target
pub mod fuzzing {
    pub use crate::directory::fuzz as directory;
    pub use crate::header::fuzz as header;
}
