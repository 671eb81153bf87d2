//! Sends every message of channel 8 back on channel 9: the partner of the example `ping`.

use takt::{ChannelId, Qos, Session, Wait};

fn main() -> Result<(), takt::Error> {
    let stream = Session::open()?.stream(Qos::fast())?;
    let sink = stream.sink(ChannelId(8))?;
    let source = stream.source(ChannelId(9))?;
    loop {
        let message = sink.consume(Wait::Forever)?;
        let mut buffer = source.buffer_wait(message.len(), Wait::Forever)?;
        buffer.copy_from_slice(&message);
        buffer.emit()?;
    }
}
