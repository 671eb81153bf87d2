//! Datapaths in shared objects of their own: found in a directory when the node starts, and used as those that are built in.
//!
//! A plugin is a shared object `libtakt_datapath_NAME.so` that exports one constant, `takt_datapath_plugin`: a [`Table`] of
//! functions, which mirror [`Datapath`](crate::Datapath) and [`Port`](crate::Port) call by call. The table is a C structure
//! (`include/takt_datapath.h`), so a plugin may be written in C; one in Rust implements the two traits and says
//! [`export_datapath!`](crate::export_datapath).
//!
//! **A plugin is part of the process**, and trusted as the process itself is. What is checked here finds mistakes, such as a
//! plugin of another version; it does not hold off malice. So a plugin is loaded only from a file that nobody else can write.

mod abi;
mod export;
mod load;

pub use abi::{
    ABI_VERSION, Address, Counters, Datagram, Deliver, Description, Failure, FailureKind,
    LAUNCH_NONE, NotReserved, Opt, Request, Table,
};
pub use export::{Export, table};
pub use load::{DIRECTORY, LoadError, Plugin, file_name};

/// What a datapath was configured with: keys and values as text. A list has its key once for each value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(pub Vec<(String, String)>);

impl Options {
    /// The values of a key, in order.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        let values = self.0.iter().filter(move |(known, _)| known == key);
        values.map(|(_, value)| value.as_str())
    }

    /// The only value of a key.
    ///
    /// # Errors
    /// When there are several.
    pub fn one<'a>(&'a self, key: &'a str) -> Result<Option<&'a str>, String> {
        let mut values = self.all(key);
        let first = values.next();
        match values.next() {
            None => Ok(first),
            Some(_) => Err(format!("`{key}` is a list: write one value")),
        }
    }

    /// The only value of a key, read as a `T`.
    ///
    /// # Errors
    /// As [`one`](Self::one), and with the value and what was expected when it cannot be read.
    pub fn parse<T: std::str::FromStr>(
        &self,
        key: &str,
        expected: &str,
    ) -> Result<Option<T>, String> {
        let Some(text) = self.one(key)? else {
            return Ok(None);
        };
        match text.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(format!("`{key}` is {text:?}: write {expected}")),
        }
    }

    /// Refuses keys that are not among these.
    ///
    /// # Errors
    /// The first one, and which there are.
    pub fn only(&self, known: &[&str]) -> Result<(), String> {
        match self
            .0
            .iter()
            .find(|(key, _)| !known.contains(&key.as_str()))
        {
            None => Ok(()),
            Some((key, _)) => Err(format!(
                "`{key}` is no option: there are {}",
                known.join(", ")
            )),
        }
    }
}

#[cfg(test)]
mod tests;
