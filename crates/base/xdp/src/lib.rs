//! XDP programs at network interfaces: attaching them for as long as the process lives, and what the kernel says of an interface.
//!
//! What the loader library does not do, or does otherwise.

mod device;
mod error;
mod link;

pub use device::{
    Namespace, driver, hardware_kind, index, is_there, mtu, namespace, receive_queues,
    stamp_received,
};
pub use error::{errno, told};
pub use link::{AttachMode, attach};
