//! Publishes a temperature on channel 7, ten times a second, until it is stopped.

use std::time::Duration;

use takt::{ChannelId, Qos, Session, Wait};

fn main() -> Result<(), takt::Error> {
    let stream = Session::open()?.stream(Qos::slow())?;
    let source = stream.source(ChannelId(7))?;
    for step in 0.. {
        let temperature = 20.0 + 5.0 * (f64::from(step) / 50.0).sin();
        let mut buffer = source.buffer_wait(8, Wait::Forever)?;
        buffer.copy_from_slice(&temperature.to_ne_bytes());
        buffer.emit()?;
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}
