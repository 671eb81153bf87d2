//! Prints the temperatures on channel 7 with the time that each has taken; `subscribe N` stops after N.

use takt::{ChannelId, Error, Qos, Session, Wait};
use takt_clock::{Clock, SystemTai};

fn main() -> Result<(), Error> {
    let mut left: Option<u64> = std::env::args().nth(1).and_then(|n| n.parse().ok());
    let stream = Session::open()?.stream(Qos::slow())?;
    let sink = stream.sink(ChannelId(7))?;
    while left != Some(0) {
        match sink.consume(Wait::Forever) {
            Ok(message) => {
                let age = SystemTai.now().nanos_since(message.send_time());
                let temperature = message
                    .first_chunk()
                    .map_or(f64::NAN, |b| f64::from_ne_bytes(*b));
                println!("{temperature:.2} degrees, {age} ns old");
                left = left.map(|left| left - 1);
            }
            // The next call waits for the runtime.
            Err(Error::Disconnected) => eprintln!("the runtime went away"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
