//! The core of a messaging middleware on the channel API alone, in a few dozen lines (naaas-thesis-2024, section 6.3.4:
//! LunarMoM has 135 lines of C). What a product needs besides is in `takt-messaging`.
//!
//!     cargo run -p takt --example topics -- subscribe plant/7
//!     cargo run -p takt --example topics -- publish plant/7 21.5

use std::collections::HashMap;

use takt::{BadName, CallbackSink, ChannelId, Error, Qos, Session, Source, Stream, Wait};

/// Publishes and subscribes by topic.
pub struct Messaging {
    stream: Stream,
    sources: HashMap<ChannelId, Source>,
    sinks: Vec<CallbackSink>,
}

impl Messaging {
    /// On a stream of this quality.
    pub fn new(session: &Session, qos: Qos) -> Result<Self, Error> {
        Ok(Self {
            stream: session.stream(qos)?,
            sources: HashMap::new(),
            sinks: Vec::new(),
        })
    }

    /// The channel of a topic: its name, hashed.
    fn channel(topic: &str) -> Result<ChannelId, Error> {
        ChannelId::named(topic).map_err(|bad: BadName| Error::InvalidArgument(bad.to_string()))
    }

    /// Publishes a message of `len` bytes, which `fill` writes where it is sent from. The first one of a topic opens its
    /// source, and waits for a reader.
    pub fn publish(
        &mut self,
        topic: &str,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<(), Error> {
        let channel = Self::channel(topic)?;
        if !self.sources.contains_key(&channel) {
            let source = self.stream.source(channel)?;
            source.wait_reader(Wait::Forever)?;
            self.sources.insert(channel, source);
        }
        let mut buffer = self.sources[&channel].buffer_wait(len, Wait::Forever)?;
        fill(&mut buffer);
        buffer.emit()?;
        Ok(())
    }

    /// Has `receive` called with each message of a topic, where it was received.
    pub fn subscribe(
        &mut self,
        topic: &str,
        mut receive: impl FnMut(&[u8]) + Send + 'static,
    ) -> Result<(), Error> {
        let sink = self
            .stream
            .sink_callback(Self::channel(topic)?, move |message| receive(message))?;
        self.sinks.push(sink);
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut messaging = Messaging::new(&Session::open()?, Qos::slow().reliable())?;
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["publish", topic, text] => messaging.publish(topic, text.len(), |memory| {
            memory.copy_from_slice(text.as_bytes());
        }),
        ["subscribe", topic] => {
            messaging.subscribe(topic, |message| {
                println!("{}", String::from_utf8_lossy(message));
            })?;
            loop {
                std::thread::park();
            }
        }
        _ => Err(Error::InvalidArgument(
            "write `publish TOPIC TEXT` or `subscribe TOPIC`".into(),
        )),
    }
}
