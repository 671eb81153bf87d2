//! What operators list, however much strangers have open.

mod support;

use support::{App, config, free_port, start};
use takt_runtime::policy::Policy;
use takt_session::message::{Reply, Request};
use takt_session::{ChannelId, Qos, SinkMode};
use takt_testing::until_true;

fn open_sink(app: &mut App, stream: u32, channel: u64) -> u32 {
    let request = Request::OpenSink {
        stream,
        channel: ChannelId(channel),
        depth: 2,
        notify_fd: false,
        mode: SinkMode::default(),
    };
    let Ok(Reply::SinkOpened { sink, .. }) = app.ask(request) else {
        panic!("no sink")
    };
    sink
}

fn open_source(app: &mut App, stream: u32, channel: u64) -> u32 {
    let request = Request::OpenSource {
        stream,
        channel: ChannelId(channel),
        depth: 2,
        origin: 0,
        first: 0,
    };
    let Ok(Reply::SourceOpened { source, .. }) = app.ask(request) else {
        panic!("no source")
    };
    source
}

#[test]
fn a_turn_of_the_control_thread_takes_no_more_for_a_listing_however_much_is_open() {
    const SESSIONS: u64 = 12;
    const STREAMS: u64 = 120;
    const CHANNELS: u64 = 60;
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let mut apps = Vec::new();
    for session in 0..SESSIONS {
        let mut app = App::attach(handle);
        let streams: Vec<u32> = (0..STREAMS).map(|_| app.stream(Qos::slow())).collect();
        for channel in session * CHANNELS..(session + 1) * CHANNELS {
            open_sink(&mut app, streams[0], channel);
        }
        apps.push(app);
    }
    let all = handle.sessions().expect("running");
    assert_eq!(all.len() as u64, SESSIONS);
    assert!(all.iter().all(|s| s.streams.len() as u64 == STREAMS));
    // Whatever is asked for: so much and no more in a turn.
    let (mut paged, mut first, mut pages) = (Vec::new(), Some(0), 0);
    while let Some(from) = first {
        let page = handle
            .session_page(None, from, usize::MAX)
            .expect("running");
        let streams: usize = page.entries.iter().map(|s| s.streams.len()).sum();
        assert!(streams <= 1024, "{streams} streams in one turn");
        paged.extend(page.entries.iter().map(|s| s.session));
        (first, pages) = (page.next, pages + 1);
    }
    assert_eq!(paged, all.iter().map(|s| s.session).collect::<Vec<_>>());
    assert!(pages > 1, "all in one turn");
    let page = handle.session_page(None, paged[3], 1).expect("running");
    assert_eq!(page.entries[0].session, paged[3]);
    assert_eq!((page.entries.len(), page.next), (1, Some(paged[4])));
    let nobody = handle.session_page(Some("nobody"), 0, 1).expect("running");
    assert_eq!((nobody.entries.len(), nobody.next), (0, None));
    let beyond = handle.session_page(None, u64::MAX, 1).expect("running");
    assert_eq!((beyond.entries.len(), beyond.next), (0, None));

    let channels = handle.channels().expect("running");
    let numbers: Vec<u64> = channels.iter().map(|c| c.channel).collect();
    assert_eq!(numbers, (0..SESSIONS * CHANNELS).collect::<Vec<_>>());
    let some = handle.channels_from(700, 15).expect("running");
    let some: Vec<u64> = some.iter().map(|c| c.channel).collect();
    assert_eq!(some, (700..715).collect::<Vec<_>>());
    let status = handle.status().expect("running");
    assert_eq!(
        (status.sessions as u64, status.channels as u64),
        (SESSIONS, SESSIONS * CHANNELS)
    );
}

#[test]
fn the_ends_of_a_channel_are_counted_until_they_are_closed_or_their_session_ends() {
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let ends = |channel: u64| {
        let channels = handle.channels_from(channel, 1).expect("running");
        let found = channels.first().filter(|found| found.channel == channel);
        found.map_or((0, 0), |found| (found.sources, found.sinks))
    };
    let mut apps = [(); 3].map(|()| App::attach_with(handle, Policy::default()));
    let mut opened = Vec::new();
    for app in &mut apps {
        let stream = app.stream(Qos::slow());
        let sinks = [open_sink(app, stream, 7), open_sink(app, stream, 7)];
        opened.push((open_source(app, stream, 7), sinks));
    }
    assert_eq!(ends(7), (3, 6));
    let [one, two, three] = apps;
    let mut one = one;
    let (source, sinks) = opened[0];
    assert!(matches!(
        one.ask(Request::CloseSource(source)),
        Ok(Reply::Closed)
    ));
    assert_eq!(ends(7), (2, 6));
    assert!(matches!(
        one.ask(Request::CloseSink(sinks[0])),
        Ok(Reply::Closed)
    ));
    assert_eq!(ends(7), (2, 5));
    // One leaves, one ends its session and keeps the connection, one is ended.
    drop(two);
    until_true("it has left", || ends(7) == (1, 3));
    let mut three = three;
    assert!(matches!(three.ask(Request::End), Ok(Reply::Closed)));
    assert_eq!(ends(7), (0, 1));
    let session = handle.sessions().expect("running")[0].session;
    assert!(
        handle
            .end_session(session, "enough".into())
            .expect("running")
    );
    assert_eq!(ends(7), (0, 0));
    until_true("nobody has it", || {
        handle.status().expect("running").channels == 0
    });
}
