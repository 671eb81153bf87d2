//! A client that works until it is killed: writes numbered messages as fast as buffers come free, reads
//! another channel, and holds on to some of what it got.
//!
//! `takt-test-client SOCKET WRITE READ`; a line `ready` on standard output says that it is at work. With `--topic` in the
//! place of WRITE it publishes ten messages of the topic READ, and never ends the filling of the next. With `--hold` it
//! subscribes to the topic READ, takes one message and holds it; lines say `subscribed` and `holding`. With `--serve` or
//! `--view` it sends or receives the frames of the stream READ without a pause; every byte of a frame is its number.

use std::collections::VecDeque;
use std::error::Error;

use takt::{ChannelId, Qos, Session, Wait};
use takt_messaging::{Participant, SubscriberOptions};
use takt_streaming::{Client, ClientOptions, Format, Pixels, Server, ServerOptions};

/// Received messages that it never gives back in time.
const HELD: usize = 16;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, write, read] = arguments.as_slice() else {
        return Err("usage: takt-test-client SOCKET WRITE READ".into());
    };
    let session = Session::builder()
        .socket(socket)
        .name("to be killed")
        .open()?;
    match write.as_str() {
        "--topic" => return publish(session, read),
        "--hold" => return hold(session, read),
        "--serve" => return serve(session, read),
        "--view" => return view(session, read),
        _ => {}
    }
    let stream = session.stream(Qos::slow())?;
    let source = stream.source(ChannelId(write.parse()?))?;
    let sink = stream.sink(ChannelId(read.parse()?))?;
    let mut held = VecDeque::new();
    for number in 0u64.. {
        let mut buffer = source.buffer_wait(8, Wait::Forever)?;
        buffer.copy_from_slice(&number.to_le_bytes());
        buffer.emit()?;
        if let Ok(message) = sink.consume(Wait::Never) {
            held.push_back(message);
        }
        if held.len() > HELD {
            held.pop_front();
        }
        if number == 1000 {
            println!("ready");
        }
    }
    Ok(())
}

fn publish(session: Session, topic: &str) -> Result<(), Box<dyn Error>> {
    let participant = Participant::builder(session).name("to be killed").open()?;
    let publisher = participant.publisher(topic, Qos::slow().reliable())?;
    publisher.wait_subscriber(Wait::Forever)?;
    for number in 0u64..10 {
        publisher.publish(&number.to_le_bytes(), Wait::Forever)?;
    }
    let fill = |memory: &mut [u8]| {
        memory.fill(0xff);
        println!("ready");
        loop {
            std::thread::park();
        }
    };
    publisher.fill(8, Wait::Forever, fill)?;
    Ok(())
}

fn hold(session: Session, topic: &str) -> Result<(), Box<dyn Error>> {
    let participant = Participant::new(session)?;
    let options = SubscriberOptions {
        depth: 4,
        ..SubscriberOptions::default()
    };
    let subscriber = participant.subscriber_with(topic, options)?;
    println!("subscribed");
    let _sample = subscriber.take(Wait::Forever)?;
    println!("holding");
    loop {
        std::thread::park();
    }
}

fn serve(session: Session, stream: &str) -> Result<(), Box<dyn Error>> {
    let participant = Participant::new(session)?;
    let format = Format::picture(Pixels::Rgb, 640, 360)?;
    let options = ServerOptions::new(Qos::slow().reliable());
    let mut server = Server::open(&participant, stream, format, options)?;
    loop {
        let frame = vec![server.frames() as u8; format.bytes()];
        server.send(&frame, Wait::Forever)?;
    }
}

fn view(session: Session, stream: &str) -> Result<(), Box<dyn Error>> {
    let participant = Participant::new(session)?;
    let client = Client::connect(&participant, stream, ClientOptions::default().all())?;
    loop {
        client.next(Wait::Forever)?;
    }
}
