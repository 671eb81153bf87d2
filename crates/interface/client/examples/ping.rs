//! Measures round trips over channels 8 and 9 to the example `echo`; `ping N` makes N of them, 1000 if not said.

use std::time::{Duration, Instant};

use takt::{ChannelId, Error, Qos, Session, Wait};

fn main() -> Result<(), Error> {
    let count = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(1000);
    let stream = Session::open()?.stream(Qos::fast())?;
    println!(
        "over {}{}",
        stream.datapath(),
        stream
            .warning()
            .map_or(String::new(), |w| format!(" ({w})"))
    );
    let source = stream.source(ChannelId(8))?;
    let sink = stream.sink(ChannelId(9))?;
    let mut times = Vec::new();
    while times.len() < count {
        let start = Instant::now();
        source.buffer_wait(64, Wait::Forever)?.emit()?;
        match sink.consume(Wait::For(Duration::from_secs(1))) {
            Ok(_) => times.push(start.elapsed()),
            Err(Error::TimedOut) => println!("no answer: does `echo` run?"),
            Err(error) => return Err(error),
        }
    }
    times.sort();
    println!(
        "median {:?}, 99 % {:?}",
        times[count / 2],
        times[count * 99 / 100]
    );
    Ok(())
}
