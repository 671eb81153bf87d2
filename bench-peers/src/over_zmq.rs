//! ZeroMQ over TCP: publish and subscribe for streams, request and reply for round trips.

use ::zmq::{Context, DONTWAIT, Message, POLLIN, Socket, SocketType};

use crate::side::{
    Counter, END, Failure, Measured, PATIENCE, measure_round_trips, send_for, tell_ready, wait_for,
};
use crate::{Common, Ping, Publish};

/// Messages that may wait at each end before the publisher drops some.
const HIGH_WATER_MARK: i32 = 1_000_000;

fn open(context: &Context, kind: SocketType) -> Result<Socket, Failure> {
    let socket = context.socket(kind)?;
    socket.set_sndhwm(HIGH_WATER_MARK)?;
    socket.set_rcvhwm(HIGH_WATER_MARK)?;
    socket.set_linger(PATIENCE.as_millis() as i32)?;
    Ok(socket)
}

/// Publishes as fast as ZeroMQ takes messages; above the high-water mark it drops them.
pub fn publish(options: &Publish) -> Result<(), Failure> {
    let context = Context::new();
    // XPUB is PUB that also tells who subscribes.
    let socket = open(&context, SocketType::XPUB)?;
    socket.connect(&format!("tcp://{}", options.common.address))?;
    wait_for_subscription(&socket)?;
    let payload = vec![0_u8; options.common.payload as usize];
    let sent = send_for(options.duration_ms, || Ok(socket.send(&payload[..], 0)?))?;
    // The end may be dropped as any other message, until there is room again.
    wait_for("end of the subscription", || {
        socket.send(&END[..], 0)?;
        Ok((socket.poll(POLLIN, 20)? > 0).then_some(()))
    })?;
    Measured::sent(sent).tell()
}

/// Waits for the message that tells of a subscription; it begins with 1.
fn wait_for_subscription(socket: &Socket) -> Result<(), Failure> {
    if socket.poll(POLLIN, PATIENCE.as_millis() as i64)? == 0 {
        return Err("no subscriber".into());
    }
    let told = socket.recv_bytes(DONTWAIT)?;
    if told.first() == Some(&1) {
        Ok(())
    } else {
        Err("an unknown subscription message".into())
    }
}

/// Counts what arrives.
pub fn subscribe(common: &Common) -> Result<(), Failure> {
    let context = Context::new();
    let socket = open(&context, SocketType::SUB)?;
    socket.bind(&format!("tcp://{}", common.address))?;
    socket.set_subscribe(b"")?;
    tell_ready()?;
    let mut counter = Counter::default();
    let mut message = Message::new();
    loop {
        socket.recv(&mut message, 0)?;
        if let Some(measured) = counter.count(&message) {
            // The publisher waits for this: it keeps the pipe of a subscriber that merely goes away.
            socket.set_unsubscribe(b"")?;
            return measured.tell();
        }
    }
}

/// Measures round trips, as libzmq's own `local_lat` does.
pub fn ping(options: &Ping) -> Result<(), Failure> {
    let context = Context::new();
    let socket = open(&context, SocketType::REQ)?;
    socket.set_rcvtimeo(PATIENCE.as_millis() as i32)?;
    socket.connect(&format!("tcp://{}", options.common.address))?;
    let mut payload = vec![0_u8; options.common.payload as usize];
    let mut answer = Message::new();
    let latencies = measure_round_trips(options, |sequence| {
        payload[..8].copy_from_slice(&sequence.to_ne_bytes());
        socket.send(&payload[..], 0)?;
        socket.recv(&mut answer, 0)?;
        if answer[..] == payload[..] {
            Ok(())
        } else {
            Err("an answer to another request".into())
        }
    })?;
    socket.send(&END[..], 0)?;
    Measured::from(latencies).tell()
}

/// Echoes, as libzmq's own `remote_lat` does.
pub fn pong(common: &Common) -> Result<(), Failure> {
    let context = Context::new();
    let socket = open(&context, SocketType::REP)?;
    socket.bind(&format!("tcp://{}", common.address))?;
    tell_ready()?;
    loop {
        let message = socket.recv_msg(0)?;
        if message.len() == END.len() {
            return Measured::default().tell();
        }
        socket.send(message, 0)?;
    }
}
