//! zenoh: two peers over TCP, no scouting, default batching, nothing dropped.

use std::sync::Mutex;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use ::zenoh::pubsub::Publisher;
use ::zenoh::qos::CongestionControl;
use ::zenoh::{Config, Session, Wait};

use crate::side::{
    Counter, END, Failure, Measured, PATIENCE, measure_round_trips, send_for, tell_ready, wait_for,
};
use crate::{Common, Ping, Publish};

const STREAM: &str = "takt/bench/stream";
const PING: &str = "takt/bench/ping";
const PONG: &str = "takt/bench/pong";
/// How long to wait for the first answer before asking again.
const FIRST_ANSWER: Duration = Duration::from_millis(100);

/// A peer that does one thing with the given address: `listen` or `connect`.
fn open(role: &str, address: &str) -> Result<Session, Failure> {
    let mut config = Config::default();
    for (key, value) in [
        ("mode", "\"peer\"".to_owned()),
        ("scouting/multicast/enabled", "false".to_owned()),
        ("scouting/gossip/enabled", "false".to_owned()),
        ("listen/endpoints", "[]".to_owned()),
        (&format!("{role}/endpoints"), format!("[\"tcp/{address}\"]")),
    ] {
        config.insert_json5(key, &value)?;
    }
    ::zenoh::open(config).wait()
}

/// A publisher that waits rather than drops, once somebody listens.
fn publisher<'a>(session: &'a Session, key: &'static str) -> Result<Publisher<'a>, Failure> {
    let publisher = session
        .declare_publisher(key)
        .congestion_control(CongestionControl::Block)
        .wait()?;
    wait_for("subscriber", || {
        Ok(publisher.matching_status().wait()?.matching().then_some(()))
    })?;
    Ok(publisher)
}

/// Publishes as fast as zenoh takes messages.
pub fn publish(options: &Publish) -> Result<(), Failure> {
    let session = open("connect", &options.common.address)?;
    let publisher = publisher(&session, STREAM)?;
    let payload = vec![0_u8; options.common.payload as usize];
    let sent = send_for(options.duration_ms, || publisher.put(&payload[..]).wait())?;
    publisher.put(END).wait()?;
    publisher.undeclare().wait()?;
    session.close().wait()?;
    Measured::sent(sent).tell()
}

/// Counts what arrives, in the callback of zenoh's receiving thread.
pub fn subscribe(common: &Common) -> Result<(), Failure> {
    let session = open("listen", &common.address)?;
    let (send, result) = sync_channel(1);
    // Only one thread takes this lock: the callback must be shareable, not shared.
    let counter = Mutex::new(Counter::default());
    let _subscriber = session
        .declare_subscriber(STREAM)
        .callback(move |sample| {
            let payload = sample.payload().to_bytes();
            let measured = counter
                .lock()
                .ok()
                .and_then(|mut counter| counter.count(&payload));
            if let Some(measured) = measured {
                // The receiver is there until it has one result.
                let _ = send.try_send(measured);
            }
        })
        .wait()?;
    tell_ready()?;
    let measured: Measured = result.recv()?;
    measured.tell()
}

/// Measures round trips.
pub fn ping(options: &Ping) -> Result<(), Failure> {
    let session = open("connect", &options.common.address)?;
    let answers = session.declare_subscriber(PONG).wait()?;
    let publisher = publisher(&session, PING)?;
    let mut payload = vec![0_u8; options.common.payload as usize];
    // The far side may not know of our subscription yet: repeat until it answers.
    wait_for("answer", || {
        publisher.put(&payload[..]).wait()?;
        answers.recv_timeout(FIRST_ANSWER)
    })?;
    while answers.try_recv()?.is_some() {}
    let latencies = measure_round_trips(options, |sequence| {
        payload[..8].copy_from_slice(&sequence.to_ne_bytes());
        publisher.put(&payload[..]).wait()?;
        loop {
            let answer = answers.recv_timeout(PATIENCE)?.ok_or("no answer")?;
            if answer.payload().to_bytes().get(..8) == Some(&sequence.to_ne_bytes()[..]) {
                return Ok(());
            }
        }
    })?;
    publisher.put(END).wait()?;
    publisher.undeclare().wait()?;
    session.close().wait()?;
    Measured::from(latencies).tell()
}

/// Echoes, in the callback of zenoh's receiving thread, as zenoh's own example does.
pub fn pong(common: &Common) -> Result<(), Failure> {
    let session = open("listen", &common.address)?;
    let publisher = session
        .declare_publisher(PONG)
        .congestion_control(CongestionControl::Block)
        .wait()?;
    let (send, end) = sync_channel(1);
    let _subscriber = session
        .declare_subscriber(PING)
        .callback(move |sample| {
            if sample.payload().len() == END.len() {
                let _ = send.try_send(Ok(()));
            } else if let Err(error) = publisher.put(sample.payload().clone()).wait() {
                let _ = send.try_send(Err(error));
            }
        })
        .wait()?;
    tell_ready()?;
    end.recv()??;
    Measured::default().tell()
}
