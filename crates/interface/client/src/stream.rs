//! Streams: channels of one quality.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use takt_session::message::{Reply, Request};
use takt_session::{ChannelId, Qos};

use crate::callback::CallbackSink;
use crate::control::{SinkRecord, SourceRecord, Target, open_sink, source_opened, unexpected};
use crate::error::Error;
use crate::frame::FrameSource;
use crate::notify::Event;
use crate::notify::Notify;
use crate::owner::StreamCore;
use crate::reader;
use crate::sink::{Message, Sink, SinkOptions};
use crate::source::{Source, SourceOptions};

/// A set of quality requirements, and the channels that share them.
///
/// Cheap to clone. The stream is closed when it and all its sources and sinks are dropped.
#[derive(Clone)]
pub struct Stream(pub(crate) Arc<StreamCore>);

impl Stream {
    /// What was asked for.
    pub fn qos(&self) -> Qos {
        self.0.qos
    }

    /// The datapath that carries the stream now. It becomes another one when the runtime has come back, when the node's
    /// mapping changes, or when a datapath comes or goes; empty in a forked child.
    pub fn datapath(&self) -> String {
        self.opened(|open| open.datapath.clone())
            .unwrap_or_default()
    }

    /// Why the datapath is not what was asked for, if it is not.
    pub fn warning(&self) -> Option<String> {
        self.opened(|open| open.warning.clone())
            .filter(|warning| !warning.is_empty())
    }

    fn opened<T>(&self, read: impl FnOnce(&crate::control::OpenStream) -> T) -> Option<T> {
        let shared = &self.0.owner.shared;
        if shared.slot.forked() {
            return None;
        }
        let control = shared.lock();
        let record = control.streams.get(&self.0.key)?;
        record.opened.as_ref().ok().map(read)
    }

    /// Opens a source: the writing end of a channel.
    ///
    /// # Errors
    /// [`Error::Refused`] by policy or for lack of memory; [`Error::Disconnected`], [`Error::Ended`],
    /// [`Error::TimedOut`].
    pub fn source(&self, channel: ChannelId) -> Result<Source, Error> {
        self.source_with(channel, SourceOptions::default())
    }

    /// As [`source`](Self::source), with other than the usual options.
    ///
    /// # Errors
    /// As [`source`](Self::source); [`Error::Refused`] when a depth is not possible.
    pub fn source_with(&self, channel: ChannelId, options: SourceOptions) -> Result<Source, Error> {
        let (key, emitted, room) = self.open_source(Target::Channel(channel), options)?;
        Source::new(self.0.clone(), key, channel, emitted, room)
    }

    /// Opens a source of whole Ethernet frames, which leave the node from the tenant's endpoint.
    ///
    /// # Errors
    /// As [`source_with`](Self::source_with); [`Error::Refused`] also when the tenant has no endpoint.
    pub fn frame_source(&self, options: SourceOptions) -> Result<FrameSource, Error> {
        let (key, emitted, room) = self.open_source(Target::Endpoint, options)?;
        FrameSource::new(self.0.clone(), key, emitted, room)
    }

    /// Opens a source at the runtime and puts it on record under the key that is returned, with where it is to count
    /// what it emits, and the descriptor that tells of room.
    #[allow(clippy::type_complexity)] // used twice, here
    fn open_source(
        &self,
        target: Target,
        options: SourceOptions,
    ) -> Result<(u32, Arc<AtomicU64>, Option<Arc<Event>>), Error> {
        let shared = &self.0.owner.shared;
        let SourceOptions { depth, notify_fd } = options;
        let room = match notify_fd {
            true => {
                let room = Event::new().map_err(Error::system("make the source's descriptor"))?;
                Some(Arc::new(room))
            }
            false => None,
        };
        // Random: its keys are. A forked child has those of its parent.
        let mut origin = RandomState::new().build_hasher();
        origin.write_u32(std::process::id());
        let origin = origin.finish();
        let (answer, state) = shared.request(target.open(self.id()?, depth, origin, 0))?;
        let opened = source_opened(answer)?;
        if notify_fd && let Err(error) = shared.tell_room(state, opened.id) {
            // Nobody uses it.
            shared.post_in(state, Request::CloseSource(opened.id));
            return Err(error);
        }
        let emitted = Arc::<AtomicU64>::default();
        let counted = emitted.clone();
        let key = shared.record(state, |control, key, _| {
            let record = SourceRecord {
                stream: self.0.key,
                target,
                depth,
                origin,
                emitted: counted,
                tells_room: notify_fd,
                opened: Ok(opened),
            };
            control.sources.insert(key, record);
            Ok(())
        })?;
        Ok((key, emitted, room))
    }

    /// Opens a sink: a reading end of a channel.
    ///
    /// # Errors
    /// As [`source`](Self::source).
    pub fn sink(&self, channel: ChannelId) -> Result<Sink, Error> {
        self.sink_with(channel, SinkOptions::default())
    }

    /// As [`sink`](Self::sink), with other than the usual options.
    ///
    /// # Errors
    /// As [`sink`](Self::sink); [`Error::Refused`] when a depth is not possible.
    pub fn sink_with(&self, channel: ChannelId, options: SinkOptions) -> Result<Sink, Error> {
        let shared = &self.0.owner.shared;
        let depth = options.depth;
        let stream = self.id()?;
        let notify = match options.notify_fd {
            true => {
                let notify = Notify::new().map_err(Error::system("make the sink's descriptor"))?;
                Some(Arc::new(notify))
            }
            false => None,
        };
        let notify_fd = notify.is_some();
        let (answer, state) = shared.request(Request::OpenSink {
            stream,
            channel,
            depth,
            notify_fd,
            mode: options.mode(),
        })?;
        let Reply::SinkOpened { sink, block } = answer.reply else {
            return Err(unexpected(&answer.reply));
        };
        let descriptors = answer.descriptors;
        let recorded = shared.record(state, |control, key, attachment| {
            let opened = open_sink(
                attachment,
                sink,
                (block, options.latest),
                descriptors,
                notify.as_deref(),
            )?;
            let record = SinkRecord {
                stream: self.0.key,
                channel,
                depth,
                mode: options.mode(),
                notify: notify.clone(),
                opened: Ok(opened),
            };
            control.sinks.insert(key, record);
            Ok(())
        });
        let key = recorded.inspect_err(|error| {
            if matches!(error, Error::System { .. }) {
                // Nobody reads it.
                shared.lock().mail.forget_sink(state, sink);
                shared.post_in(state, Request::CloseSink(sink));
            }
        })?;
        Sink::new(self.0.clone(), key, channel, notify)
    }

    /// Opens a sink that hands every message to `receive`, on a thread of its own. The message is
    /// released when `receive` returns.
    ///
    /// # Errors
    /// As [`sink`](Self::sink); [`Error::System`] when no thread can be started.
    pub fn sink_callback(
        &self,
        channel: ChannelId,
        receive: impl FnMut(&Message<'_>) + Send + 'static,
    ) -> Result<CallbackSink, Error> {
        self.sink_callback_with(channel, SinkOptions::default(), receive)
    }

    /// As [`sink_callback`](Self::sink_callback), with other than the usual options.
    ///
    /// # Errors
    /// As [`sink_callback`](Self::sink_callback).
    pub fn sink_callback_with(
        &self,
        channel: ChannelId,
        options: SinkOptions,
        receive: impl FnMut(&Message<'_>) + Send + 'static,
    ) -> Result<CallbackSink, Error> {
        CallbackSink::start(self.sink_with(channel, options)?, receive)
    }

    /// Its number at the runtime.
    fn id(&self) -> Result<u32, Error> {
        let shared = &self.0.owner.shared;
        shared.check()?;
        // What was dropped makes room for what is opened, without waiting for the thread's next look.
        reader::close_lingering(shared);
        let control = shared.lock();
        match control
            .streams
            .get(&self.0.key)
            .map(|record| &record.opened)
        {
            Some(Ok(open)) => Ok(open.id),
            Some(Err(failure)) => Err(Error::Refused(failure.clone())),
            None => Err(Error::Closed),
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream")
            .field("qos", &self.0.qos)
            .finish_non_exhaustive()
    }
}
