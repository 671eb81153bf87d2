//! iceoryx2: shared memory on one host, polling on both sides, messages loaned and not copied.

use std::mem::MaybeUninit;

use ::iceoryx2::port::publisher::Publisher;
use ::iceoryx2::port::subscriber::Subscriber;
use ::iceoryx2::prelude::*;
use ::iceoryx2::service::port_factory::publish_subscribe::PortFactory as PublishSubscribe;
use rustix::time::{ClockId, clock_gettime};

use crate::side::{
    Counter, END, Failure, Measured, measure_round_trips, send_for, tell_ready, wait_for,
};
use crate::statistics::Latencies;
use crate::{Common, Ping, Publish};

/// Messages a subscriber may have waiting.
const BUFFER: usize = 256;

type Service = PublishSubscribe<ipc::Service, [u8], ()>;

/// What a message begins with: its number and when it was sent, 8 octets each.
const HEADER: usize = 16;

fn node() -> Result<Node<ipc::Service>, Failure> {
    set_log_level(LogLevel::Error);
    // Both sides end by message; signals are left to end the process.
    Ok(NodeBuilder::new()
        .signal_handling_mode(SignalHandlingMode::Disabled)
        .create::<ipc::Service>()?)
}

fn service(node: &Node<ipc::Service>, common: &Common, way: &str) -> Result<Service, Failure> {
    let name = format!("takt/bench/{}/{way}", common.address);
    Ok(node
        .service_builder(&name.as_str().try_into()?)
        .publish_subscribe::<[u8]>()
        .enable_safe_overflow(false)
        .subscriber_max_buffer_size(BUFFER)
        .open_or_create()?)
}

fn publisher(
    service: &Service,
    common: &Common,
) -> Result<Publisher<ipc::Service, [u8], ()>, Failure> {
    Ok(service
        .publisher_builder()
        .initial_max_slice_len(common.payload as usize)
        .backpressure_strategy(BackpressureStrategy::RetryUntilDelivered)
        .create()?)
}

fn wait_for_subscriber(service: &Service) -> Result<(), Failure> {
    wait_for("subscriber", || {
        Ok((service.dynamic_config().number_of_subscribers() > 0).then_some(()))
    })
}

/// Loans `length` octets, writes `beginning` into them and sends them. The rest is what it was: a real
/// application would produce its message in place.
fn send(
    publisher: &Publisher<ipc::Service, [u8], ()>,
    length: usize,
    beginning: &[u8],
) -> Result<(), Failure> {
    // A subscriber that has announced itself but not connected yet gets nothing once its buffer is full.
    while !try_send(publisher, length, beginning)? {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Whether the message had a recipient.
fn try_send(
    publisher: &Publisher<ipc::Service, [u8], ()>,
    length: usize,
    beginning: &[u8],
) -> Result<bool, Failure> {
    let mut message = publisher.loan_slice_uninit(length)?;
    for (octet, value) in message.payload_mut().iter_mut().zip(beginning) {
        *octet = MaybeUninit::new(*value);
    }
    // SAFETY: every value of an octet is valid, and the memory came zeroed from the kernel.
    let recipients = unsafe { message.assume_init() }.send()?;
    Ok(recipients > 0)
}

/// Polls until there is a message.
fn receive<T>(
    subscriber: &Subscriber<ipc::Service, [u8], ()>,
    mut take: impl FnMut(&[u8]) -> T,
) -> Result<T, Failure> {
    loop {
        if let Some(message) = subscriber.receive()? {
            return Ok(take(message.payload()));
        }
        std::hint::spin_loop();
    }
}

/// A clock that both processes share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // Neither part is negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn header(sequence: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&sequence.to_ne_bytes());
    header[8..].copy_from_slice(&now_ns().to_ne_bytes());
    header
}

/// Publishes as fast as the subscriber takes messages.
pub fn publish(options: &Publish) -> Result<(), Failure> {
    let node = node()?;
    let service = service(&node, &options.common, "stream")?;
    let publisher = publisher(&service, &options.common)?;
    wait_for_subscriber(&service)?;
    let mut sequence = 0_u64;
    let sent = send_for(options.duration_ms, || {
        sequence += 1;
        send(
            &publisher,
            options.common.payload as usize,
            &sequence.to_ne_bytes(),
        )
    })?;
    send(&publisher, END.len(), &END)?;
    // The messages are in this process's memory: they go with it.
    wait_for("end of the subscription", || {
        Ok((service.dynamic_config().number_of_subscribers() == 0).then_some(()))
    })?;
    Measured::sent(sent).tell()
}

/// Counts what arrives.
pub fn subscribe(common: &Common) -> Result<(), Failure> {
    let node = node()?;
    let service = service(&node, common, "stream")?;
    let subscriber = service.subscriber_builder().buffer_size(BUFFER).create()?;
    tell_ready()?;
    let mut counter = Counter::default();
    loop {
        if let Some(measured) = receive(&subscriber, |message| {
            // A receiver looks at what it gets.
            std::hint::black_box(message.first_chunk::<8>().copied());
            counter.count(message)
        })? {
            return measured.tell();
        }
    }
}

/// Measures round trips.
pub fn ping(options: &Ping) -> Result<(), Failure> {
    let node = node()?;
    let there = service(&node, &options.common, "ping")?;
    let back = service(&node, &options.common, "pong")?;
    let subscriber = back.subscriber_builder().create()?;
    let publisher = publisher(&there, &options.common)?;
    wait_for_subscriber(&there)?;
    let latencies = measure_round_trips(options, |sequence| {
        send(
            &publisher,
            options.common.payload as usize,
            &header(sequence),
        )?;
        let answered = receive(&subscriber, |message| {
            message.get(..8) == Some(&sequence.to_ne_bytes()[..])
        })?;
        if answered {
            Ok(())
        } else {
            Err("an answer to another message".into())
        }
    })?;
    send(&publisher, END.len(), &END)?;
    wait_for("end of the subscription", || {
        Ok((there.dynamic_config().number_of_subscribers() == 0).then_some(()))
    })?;
    Measured::from(latencies).tell()
}

/// Echoes, and measures how long each message was on its way here.
pub fn pong(common: &Common) -> Result<(), Failure> {
    let node = node()?;
    let there = service(&node, common, "ping")?;
    let back = service(&node, common, "pong")?;
    let subscriber = there.subscriber_builder().create()?;
    let publisher = publisher(&back, common)?;
    tell_ready()?;
    let mut one_way = Latencies::new();
    loop {
        let message = receive(&subscriber, |message| {
            message.first_chunk::<HEADER>().copied()
        })?;
        let Some(header) = message else {
            break;
        };
        let [_, sent_ns] =
            [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|i| header[at + i])));
        one_way.record_ns(now_ns().saturating_sub(sent_ns));
        send(&publisher, common.payload as usize, &header)?;
    }
    Measured::from(one_way).tell()
}
