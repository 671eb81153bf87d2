//! `takt stream`: over a daemon, without one, and with GStreamer at the far end.

mod support;

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use support::{Daemon, Ran, Running, User};
use takt_streaming::rtp::Packetizer;
use takt_streaming::{Format, Pixels};
use takt_testing::{browsed, until_true};

const RELIABLE: [&str; 5] = ["--reliable", "--slow-readers", "wait", "--wait", "1min"];

/// The frames of a file with pictures of this size.
fn frames(file: &Path, bytes: usize) -> Vec<Vec<u8>> {
    let all = std::fs::read(file).expect("a file");
    assert_eq!(all.len() % bytes, 0, "whole frames");
    all.chunks(bytes).map(<[u8]>::to_vec).collect()
}

fn serve<'a>(stream: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["stream", "serve", stream], more, &RELIABLE[..]].concat()
}

/// A port of UDP that is free now.
fn free_port() -> u16 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.local_addr().expect("its address").port()
}

/// Whether a socket of UDP has this port. Trying to bind it could keep who is to have it from it.
fn is_bound(port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/net/udp").expect("the kernel's list");
    sockets.contains(&format!(":{port:04X} "))
}

/// Runs GStreamer to its end.
fn gstreamer(pipeline: &str) -> Command {
    let mut command = Command::new("gst-launch-1.0");
    command.arg("-q").args(pipeline.split_whitespace());
    command.stdin(Stdio::null());
    command
}

#[test]
fn frames_are_written_as_they_were_read() {
    let daemon = Daemon::start("");
    let directory = &daemon.directory;
    let [input, output] = ["in.raw", "out.raw"].map(|name| directory.join(name));
    let pictures: Vec<u8> = (0..20 * 64 * 48 * 3)
        .map(|at: u32| ((at * 31) >> 5) as u8)
        .collect();
    std::fs::write(&input, &pictures).expect("a file");
    let view = daemon.spawn(&[
        "stream",
        "view",
        "a",
        "--all",
        "--count",
        "20",
        "--output",
        output.to_str().expect("UTF-8"),
    ]);
    let read = |more: &[&str]| -> Ran {
        let from = ["--from", "-", "--size", "64x48"];
        let mut command = daemon.command(&serve("a", &[&from, more].concat()));
        command.stdin(std::fs::File::open(&input).expect("a file"));
        command.output().expect("takt").into()
    };
    let served = read(&["--json"]);
    assert_eq!(served.code, Some(0), "{served:?}");
    let summary = served.json();
    assert_eq!(
        (&summary["frames"], &summary["format"]),
        (&20.into(), &"64x48 rgb".into())
    );
    let viewed = view.end();
    assert_eq!(viewed.code, Some(0), "{viewed:?}");
    assert!(viewed.err.contains("64x48 rgb: 20 frames, "), "{viewed:?}");
    assert_eq!(std::fs::read(&output).expect("a file"), pictures);

    // Cut short.
    std::fs::write(&input, &pictures[..10_000]).expect("a file");
    let _view = daemon.spawn(&["stream", "view", "a", "--http", "127.0.0.1:0"]);
    let short = read(&[]);
    assert_eq!(short.code, Some(1), "{short:?}");
    let told = "standard input ends within frame 1, after 784 of 9216 bytes: do --size and --pixels say what comes?";
    assert!(short.err.contains(told), "{short:?}");
}

#[test]
fn pictures_of_a_directory_are_shown_on_a_page_without_a_daemon() {
    let Some(user) = User::new(65_531) else {
        return;
    };
    let directory = &user.directory;
    let pictures = directory.join("pictures");
    std::fs::create_dir(&pictures).expect("a directory");
    // Red, then green; and what is no picture.
    for (name, pixel) in [("1.ppm", [255, 0, 0]), ("2.ppm", [0, 255, 0])] {
        let mut file = b"P6 32 16 255\n".to_vec();
        file.extend([pixel; 32 * 16].as_flattened());
        std::fs::write(pictures.join(name), file).expect("a file");
    }
    std::fs::write(pictures.join("read.me"), "text").expect("a file");
    let mut view = user.spawn(&["stream", "view", "slides", "--http", "127.0.0.1:0"]);
    let from = pictures.to_str().expect("UTF-8");
    let served = user.spawn(&["stream", "serve", "slides", "--from", from, "--rate", "50"]);
    let told = view.line_with("the picture is at ");
    let address = &told[told.find("http://").expect("an address")..];
    let get = |path: &str| {
        let out = Command::new("curl")
            .args(["-s", "--max-time", "60", &format!("{address}{path}")])
            .output();
        out.expect("curl").stdout
    };
    assert!(get("").starts_with(b"<!doctype html>"));
    until_true("a picture", || get("frame.jpg").starts_with(&[0xff, 0xd8]));
    // They are there with the first picture.
    assert_ne!(get("figures.json"), b"null");
    until_true("a picture and its figures", || {
        let jpeg = get("frame.jpg");
        let figures: serde_json::Value =
            serde_json::from_slice(&get("figures.json")).unwrap_or_default();
        jpeg.starts_with(&[0xff, 0xd8])
            && figures["format"] == "32x16 rgb"
            && figures["frames"].as_u64() > Some(0)
    });
    // A browser shows the picture and draws how long frames took.
    until_true("the page with figures", || {
        let page = browsed(address);
        let figures = [
            "slides: 32x16 rgb</h1>",
            " fps, latency median ",
            "<polyline points=",
        ];
        figures.iter().all(|figure| page.contains(figure)) && page.contains("src=\"frame.jpg?")
    });
    assert_eq!(get("nothing"), b"the picture is at /\n");
    // More than there are places for, that ask and do not read.
    let host = address["http://".len()..].trim_end_matches('/');
    let ask = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").repeat(1000);
    let deaf: Vec<_> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(host).expect("a connection");
            stream.set_nonblocking(true).expect("a socket");
            // Until there is no room, or it is closed.
            while stream.write(ask.as_bytes()).is_ok_and(|sent| sent > 0) {}
            stream
        })
        .collect();
    assert_eq!(get("nothing"), b"the picture is at /\n");
    drop(deaf);
    // A web page elsewhere whose name leads here.
    let mut rebound = Command::new("curl");
    rebound.args([
        "-s",
        "-H",
        "Host: pictures.example",
        &format!("{address}frame.jpg"),
    ]);
    let rebound = rebound.output().expect("curl").stdout;
    assert_eq!(rebound, b"name this host by its address\n");
    for (running, told) in [(served, "frame(s) sent in "), (view, "32x16 rgb: ")] {
        running.signal(Signal::INT);
        let ran = running.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(ran.err.contains(told), "{ran:?}");
    }
}

#[test]
fn gstreamer_sends_and_every_frame_is_the_same() {
    let daemon = Daemon::start("");
    let directory = &daemon.directory;
    let [sent, received] = ["sent.yuv", "received.yuv"].map(|name| directory.join(name));
    let caps = "video/x-raw,format=UYVY,width=320,height=240,framerate=100/1";
    let made = gstreamer(&format!(
        "videotestsrc pattern=ball num-buffers=200 ! {caps} ! filesink location={}",
        sent.display()
    ))
    .status();
    assert!(made.expect("GStreamer").success());
    let view = daemon.spawn(&[
        "stream",
        "view",
        "camera",
        "--all",
        "--count",
        "30",
        "--output",
        received.to_str().expect("UTF-8"),
    ]);
    let port = free_port();
    let from = format!("rtp://127.0.0.1:{port}");
    let options = [
        "--from", &from, "--size", "320x240", "--pixels", "uyvy", "--count", "30",
    ];
    let served = daemon.spawn(&serve("camera", &options));
    until_true("it listens", || is_bound(port));
    let played = gstreamer(&format!(
        "filesrc location={} ! rawvideoparse format=uyvy width=320 height=240 framerate=100/1 ! rtpvrawpay mtu=1400 ! \
         udpsink host=127.0.0.1 port={port}",
        sent.display()
    ))
    .status();
    assert!(played.expect("GStreamer").success());
    for running in [served, view] {
        let ran = running.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let (sent, received) = (
        frames(&sent, 320 * 240 * 2),
        frames(&received, 320 * 240 * 2),
    );
    assert_eq!((sent.len(), received.len()), (200, 30));
    // Each one that came is one that was sent, in order.
    let mut rest = sent.iter();
    for (number, frame) in received.iter().enumerate() {
        assert!(
            rest.any(|sent| sent == frame),
            "frame {number} is none of those that were sent"
        );
    }
}

#[test]
fn frames_of_rtp_wait_for_a_busy_server_and_those_that_are_not_whole_are_told() {
    const FRAMES: u8 = 12;
    let daemon = Daemon::start("");
    let port = free_port();
    let from = format!("rtp://127.0.0.1:{port}");
    let options = [
        "--from", &from, "--size", "32x32", "--pixels", "uyvy", "--count", "11", "--json",
    ];
    // It waits for a viewer, and sends nothing meanwhile.
    let served = daemon.spawn(&serve("camera", &options));
    until_true("it listens", || is_bound(port));
    let format = Format::picture(Pixels::Uyvy, 32, 32).expect("a format");
    let mut packetizer = Packetizer::new(format, 600, 96, 7).expect("packets");
    assert!(packetizer.packets() > 3);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(("127.0.0.1", port)).expect("its address");
    for number in 0..FRAMES {
        let (frame, captured) = (
            vec![number; format.bytes()],
            Duration::from_millis(number.into()),
        );
        let mut packets = 0;
        let sent = packetizer.packetize(&frame, captured, |packet| {
            packets += 1;
            match (number, packets) {
                // One that is lost.
                (3, 2) => Ok(()),
                _ => socket.send(packet).map(drop),
            }
        });
        sent.expect("sent");
    }
    let received = daemon.directory.join("received.yuv");
    let output = received.to_str().expect("UTF-8");
    let view = [
        "stream", "view", "camera", "--all", "--count", "11", "--output", output,
    ];
    let view = daemon.spawn(&view);
    let served = served.end();
    assert_eq!(served.code, Some(0), "{served:?}");
    let viewed = view.end();
    assert_eq!(viewed.code, Some(0), "{viewed:?}");
    let whole: Vec<u8> = (0..FRAMES).filter(|&number| number != 3).collect();
    let came = frames(&received, format.bytes());
    assert_eq!(came.iter().map(|frame| frame[0]).collect::<Vec<_>>(), whole);
    let rtp = serde_json::json!({"received": 11, "incomplete": 1, "skipped": 0, "malformed": 0, "strays": 0});
    let summary = served.json();
    assert_eq!(summary["frames"], 11, "{summary}");
    assert_eq!(summary["rtp"], rtp, "{summary}");
}

#[test]
fn a_server_that_is_ended_while_it_waits_for_a_viewer_has_not_done_what_it_was_to_do() {
    let daemon = Daemon::start("");
    let mut server = daemon.spawn(&["stream", "serve", "a", "--size", "8x8", "--wait", "1min"]);
    server.line_with("view it with `takt stream view a`");
    server.signal(Signal::INT);
    let ran = server.end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err
            .contains("nobody views the stream yet, and nothing was sent"),
        "{ran:?}"
    );
}

#[test]
fn a_pipeline_of_gstreamer_is_a_source_and_every_frame_is_the_same() {
    let daemon = Daemon::start("");
    let directory = &daemon.directory;
    let [made, received] = ["made.rgb", "received.rgb"].map(|name| directory.join(name));
    let source = "videotestsrc pattern=ball num-buffers=20";
    let caps = "video/x-raw,format=RGB,width=320,height=240,framerate=30/1";
    let alone = gstreamer(&format!(
        "{source} ! {caps} ! filesink location={}",
        made.display()
    ));
    assert!({ alone }.status().expect("GStreamer").success());
    let output = received.to_str().expect("UTF-8");
    let view = [
        "stream", "view", "camera", "--all", "--count", "20", "--output", output,
    ];
    let view = daemon.spawn(&view);
    let from = format!("gst:{source} ! video/x-raw,framerate=30/1");
    let options = ["--from", &from, "--size", "320x240"];
    let served = daemon.spawn(&serve("camera", &options)).end();
    assert_eq!(served.code, Some(0), "{served:?}");
    let viewed = view.end();
    assert_eq!(viewed.code, Some(0), "{viewed:?}");
    assert_eq!(
        frames(&made, 320 * 240 * 3),
        frames(&received, 320 * 240 * 3)
    );

    let wrong = [
        (
            "gst:nosuchelement",
            "320x240",
            1,
            "the pipeline `nosuchelement` fails",
        ),
        (
            "/dev/video99",
            "320x240",
            1,
            "the pipeline `v4l2src device=/dev/video99` fails",
        ),
        (
            from.as_str(),
            "321x240",
            2,
            "pads lines to a multiple of 4 bytes",
        ),
    ];
    for (from, size, code, told) in wrong {
        let ran = daemon
            .spawn(&["stream", "serve", "camera", "--from", from, "--size", size])
            .end();
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.contains(told), "{ran:?}");
    }
}

#[test]
fn gstreamer_receives_and_every_frame_is_the_same() {
    let daemon = Daemon::start("");
    let directory = &daemon.directory;
    let (shown, log) = (directory.join("shown.yuv"), directory.join("log"));
    let port = free_port();
    // Named caps are those that takt tells.
    let format =
        takt_streaming::Format::picture(takt_streaming::Pixels::Uyvy, 320, 240).expect("a format");
    let caps = takt_streaming::rtp::caps(format, 96).expect("caps");
    let mut player = gstreamer(&format!(
        "udpsrc port={port} buffer-size=33554432 ! {caps} ! rtpvrawdepay ! identity eos-after=21 ! filesink location={}",
        shown.display()
    ));
    player.stderr(std::fs::File::create(&log).expect("a file"));
    let mut player = player.spawn().expect("GStreamer");
    until_true("it listens", || is_bound(port));
    let to = format!("127.0.0.1:{port}");
    let view = daemon.spawn(&["stream", "view", "camera", "--all", "--rtp", &to]);
    let options = ["--size", "320x240", "--pixels", "uyvy", "--rate", "100"];
    let served = daemon.spawn(&serve("camera", &options));
    let ended = player.wait().expect("GStreamer");
    assert!(
        ended.success(),
        "{}",
        std::fs::read_to_string(&log).unwrap_or_default()
    );
    for running in [served, view] {
        running.signal(Signal::INT);
        let ran = running.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    // The test pattern: bars that move by two pixels from frame to frame, and a line that falls by one.
    let shown = frames(&shown, 320 * 240 * 2);
    assert_eq!(shown.len(), 20);
    let falls = |frame: &[u8]| {
        frame
            .chunks(640)
            .position(|line| line.iter().all(|&byte| byte == 0xeb))
    };
    let bars = |frame: &[u8]| {
        let lines = &mut frame.chunks(640);
        lines
            .rfind(|line| line.iter().any(|&byte| byte != 0xeb))
            .map(<[u8]>::to_vec)
    };
    for (number, two) in shown.windows(2).enumerate() {
        let [before, after] = [&two[0], &two[1]].map(|frame| falls(frame).expect("a line"));
        // One, unless GStreamer's socket had no room.
        let passed = (240 + after - before) % 240;
        let (mut moved, bars) = (bars(&two[0]).expect("bars"), bars(&two[1]).expect("bars"));
        moved.rotate_left(passed * 4 % 640);
        assert!(passed > 0 && moved == bars, "frame {}", number + 1);
    }
}

#[test]
fn frames_that_are_refused_are_told_and_counted_by_their_cause() {
    let daemon = Daemon::start("");
    let _served = daemon.spawn(&["stream", "serve", "a", "--size", "64x48", "--rate", "100"]);
    let output = daemon.directory.join("none");
    let mut view = vec!["stream", "view", "a", "--json", "--timeout", "3s"];
    view.extend(["--output", output.to_str().expect("UTF-8")]);
    let ran = daemon.takt(&[&view[..], &["--most-bytes", "9215"]].concat());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for told in [
        "longer than 9215 bytes: take them with --most-bytes",
        "no frame of a yet; 0 incomplete",
    ] {
        assert!(ran.err.contains(told), "{ran:?}");
    }
    let lines = ran.out.lines();
    let figures: Vec<serde_json::Value> = lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let figures = figures.last().expect("figures");
    assert!(figures["too_large"].as_u64() > Some(0), "{figures}");
    for figure in ["no_memory", "lost_slices", "late", "other_server"] {
        assert!(figures[figure].is_u64(), "{figure}: {figures}");
    }
    let ran = daemon.takt(&[&view[..], &["--most-bytes", "9216", "--count", "1"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn another_server_and_another_format_are_told_and_a_file_has_one_format() {
    let daemon = Daemon::start("");
    let output = daemon.directory.join("out.rgb");
    let to = output.to_str().expect("UTF-8");
    let view = daemon.spawn(&["stream", "view", "a", "--json", "--all", "--output", to]);
    let once = ["--count", "2", "--rate", "100", "--size"];
    for size in ["64x48", "64x48", "32x16"] {
        let served = daemon
            .spawn(&serve("a", &[&once[..], &[size]].concat()))
            .end();
        assert_eq!(served.code, Some(0), "{served:?}");
    }
    let ran = view.end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for told in [
        "the server changed",
        "the format changed from 64x48 rgb to 32x16 rgb",
        "view them into another file",
    ] {
        assert!(ran.err.contains(told), "{told}: {ran:?}");
    }
    assert_eq!(frames(&output, 64 * 48 * 3).len(), 4);
    // Each line is an object, also the last one of a viewer that fails.
    for line in ran.out.lines() {
        let figures: serde_json::Value = serde_json::from_str(line).expect("one line");
        assert!(figures["frames"].is_u64(), "{figures}");
    }
    assert!(!ran.out.is_empty());
}

#[test]
fn figures_are_told_where_the_output_fails_and_a_frame_is_in_time() {
    let daemon = Daemon::start("");
    let _served = daemon.spawn(&["stream", "serve", "a", "--size", "64x48", "--rate", "100"]);
    let full = ["stream", "view", "a", "--json", "--output", "/dev/full"];
    let ran = daemon.takt(&full);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let last = ran.out.lines().last().expect("figures");
    let figures: serde_json::Value = serde_json::from_str(last).expect("one line");
    assert!(figures["frames"].as_u64() > Some(0), "{figures}");
    // It fails where it is too slow to get the first one.
    let impatient = [
        "stream",
        "view",
        "a",
        "--timeout",
        "0s",
        "--count",
        "1",
        "--output",
        "/dev/null",
    ];
    until_true("a frame is there in time", || {
        daemon.takt(&impatient).code == Some(0)
    });
}

#[test]
fn wrong_sources_and_nobody_are_told_with_what_to_do() {
    let daemon = Daemon::start("");
    let serve = |more: &[&str]| daemon.takt(&[&["stream", "serve", "a"][..], more].concat());
    let view = |more: &[&str]| daemon.takt(&[&["stream", "view", "a"][..], more].concat());
    // The page's usual port is somebody's: this test's, or another program's already.
    let _taken = std::net::TcpListener::bind("127.0.0.1:8088");
    let directory = &daemon.directory;
    let pictures = directory.join("pictures");
    std::fs::create_dir(&pictures).expect("a directory");
    let empty = pictures.to_str().expect("UTF-8");
    for (ran, told) in [
        (
            serve(&["--from", "/nowhere"]),
            "--from takes a directory of pictures",
        ),
        (
            serve(&["--from", empty]),
            "has no pictures: put files there that end in .png",
        ),
        (
            serve(&["--from", "rtp://127.0.0.1:1x", "--size", "8x8"]),
            "such as rtp://0.0.0.0:5004",
        ),
        (
            serve(&["--wait", "10ms"]),
            "nobody views the stream after 10ms",
        ),
        // It does not wait for viewers of what will not be sent.
        (
            serve(&[
                "--from",
                "gst:nosuchelement",
                "--size",
                "8x8",
                "--wait",
                "60s",
            ]),
            "the pipeline `nosuchelement` fails",
        ),
        (
            view(&["--timeout", "10ms", "--http", "127.0.0.1:0"]),
            "no frame of the stream a for 10ms",
        ),
        (
            view(&["--timeout", "10ms"]),
            "no frame of the stream a for 10ms",
        ),
        (
            view(&["--http", "192.0.2.1:80"]),
            "choose another address and port with --http",
        ),
        (
            view(&["--rtp", "nowhere"]),
            "write an address and a port, such as 127.0.0.1:5004",
        ),
        (
            view(&["--output", "/nowhere/at/all"]),
            "cannot write /nowhere/at/all",
        ),
    ] {
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(told), "{told}: {ran:?}");
    }
    for (ran, told) in [
        (serve(&["--size", "8"]), "write width and height in pixels"),
        (serve(&["--pixels", "yuv"]), "write one of bytes rgb rgba"),
        (serve(&["--rate", "0"]), "write frames a second"),
        (
            serve(&["--from", "-"]),
            "give --size, such as --size 1280x720",
        ),
        (
            serve(&[
                "--from",
                "rtp://127.0.0.1:0",
                "--size",
                "8x8",
                "--pixels",
                "gray",
            ]),
            "RTP has no raw video of gray",
        ),
        (
            serve(&["--size", "0x8"]),
            "write a width and a height of at least 1",
        ),
        (
            serve(&["--slice", "7"]),
            "slices of 7 bytes are not possible",
        ),
        (
            view(&[
                "--rtp",
                "127.0.0.1:5004",
                "--packet",
                "5",
                "--timeout",
                "10ms",
            ]),
            "packets of 5 bytes are not possible",
        ),
        (
            view(&["--output", "-", "--json"]),
            "frames and JSON cannot both go to standard output",
        ),
        (
            daemon.takt(&["stream", "view", "a/*", "--output", "/dev/null"]),
            "write the name of one",
        ),
        (
            daemon.takt(&["stream", "serve", "/a"]),
            "it has an empty level",
        ),
    ] {
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(told), "{told}: {ran:?}");
    }
}

/// One round of the benchmark.
fn bench(options: &str) -> serde_json::Value {
    let directory = takt_testing::Directory::new();
    let out = directory.text("out");
    let mut arguments = vec!["stream", "bench", "--json", "--out", &out];
    arguments.extend(options.split_whitespace());
    let ran = support::run(&arguments);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.json()
}

#[test]
fn the_benchmark_compares_every_frame_of_every_variant() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: lab hosts need root");
        return;
    }
    let report = bench("--sizes hd --rounds 1 --seconds 0.2");
    let variants = report["outcomes"][0]["variants"]
        .as_array()
        .expect("variants");
    assert_eq!(variants.len(), 6, "{report}");
    for variant in variants {
        let sample = &variant["rounds"][0]["sample"];
        if variant["name"] == "GStreamer, RTP" {
            // It loses what is not taken in time.
            assert!(sample["throughput"].is_object(), "{variant}");
            continue;
        }
        assert!(
            sample["throughput"]["messages"].as_u64() > Some(0),
            "{variant}"
        );
        assert_eq!(sample["throughput"]["lost"], 0, "{variant}");
        assert_eq!(sample["figures"]["wrong frames"], 0.0, "{variant}");
    }
}

#[test]
fn what_a_video_does_to_a_control_flow_is_measured_beside_that_flow_alone() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: lab hosts need root");
        return;
    }
    let report = bench("--control --rounds 1 --seconds 0.3");
    for outcome in report["outcomes"].as_array().expect("outcomes") {
        let variants = outcome["variants"].as_array().expect("variants");
        assert_eq!(variants.len(), 3, "{outcome}");
        for variant in variants {
            let sample = &variant["rounds"][0]["sample"];
            assert_eq!(sample["figures"]["sent"], 300.0, "{variant}");
            assert!(sample["latencies"].is_object(), "{variant}");
            if variant["name"] != "no video" {
                assert!(
                    sample["figures"]["frames"].as_f64() > Some(0.0),
                    "{variant}"
                );
                assert_eq!(sample["figures"]["wrong frames"], 0.0, "{variant}");
            }
        }
    }
}

#[test]
fn a_signal_ends_a_server_without_input_and_a_viewer_whose_output_nobody_reads() {
    let daemon = Daemon::start("");
    let mut command = daemon.command(&["stream", "serve", "a", "--from", "-", "--size", "64x64"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    let mut server = Running(command.spawn().expect("takt"));
    // It stays open.
    let _input = server.0.stdin.take();
    server.line_with("view it with `takt stream view a`");
    server.signal(Signal::TERM);
    let ran = server.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("0 frame(s) sent in "), "{ran:?}");

    let fifo = daemon.directory.join("fifo");
    let mode = rustix::fs::Mode::RWXU;
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
    let mut view = daemon.spawn(&[
        "stream",
        "view",
        "a",
        "--output",
        fifo.to_str().expect("UTF-8"),
    ]);
    view.until_signals_are_its_own();
    view.signal(Signal::TERM);
    let status = view.0.wait().expect("an end");
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
}

#[test]
fn frames_for_which_there_is_no_memory_are_refused() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 2000000; exec \"$@\"", "sh"]);
    command.arg(env!("CARGO_BIN_EXE_takt"));
    let serve = [
        "stream",
        "serve",
        "a",
        "--embedded",
        "--size",
        "30000x30000",
    ];
    let ran: Ran = command.args(serve).output().expect("a shell").into();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told = "takt: no memory for frames of 2700000000 bytes: choose a smaller --size, or other --pixels\n";
    assert_eq!(ran.err, told);
}

#[test]
fn a_reliable_server_stays_until_its_viewers_have_the_last_frame() {
    let Some(user) = User::new(65_529) else {
        return;
    };
    let output = user.directory.join("out.raw");
    let output = output.to_str().expect("UTF-8");
    let view = [
        "stream", "view", "a", "--all", "--count", "2", "--output", output,
    ];
    let view = user.spawn(&view);
    let options = ["--from", "-", "--size", "64x48"];
    let mut command = user.command(&serve("a", &options));
    command.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut server = Running(command.spawn().expect("takt"));
    let mut input = server.0.stdin.take().expect("piped");
    input.write_all(&[1; 64 * 48 * 3]).expect("written");
    until_true("the first frame is there", || {
        std::fs::metadata(output).is_ok_and(|file| file.len() == 64 * 48 * 3)
    });
    view.stop();
    input.write_all(&[2; 64 * 48 * 3]).expect("written");
    drop(input);
    server.line_with("waiting for viewers that do not have the last frames yet");
    view.signal(Signal::CONT);
    let served = server.end();
    assert_eq!(served.code, Some(0), "{served:?}");
    assert!(served.err.contains("2 frame(s) sent in "), "{served:?}");
    let viewed = view.end();
    assert_eq!(viewed.code, Some(0), "{viewed:?}");
    assert_eq!(frames(Path::new(output), 64 * 48 * 3).len(), 2);
}

#[test]
fn pictures_that_cannot_be_read_are_skipped_and_told() {
    let daemon = Daemon::start("");
    let pictures = daemon.directory.join("pictures");
    std::fs::create_dir(&pictures).expect("a directory");
    let mut good = b"P6 32 16 255\n".to_vec();
    good.extend([7; 32 * 16 * 3]);
    std::fs::write(pictures.join("1.png"), b"no picture").expect("a file");
    std::fs::write(pictures.join("2.ppm"), &good).expect("a file");
    std::fs::write(pictures.join("3.ppm"), &good[..100]).expect("a file");
    let from = pictures.to_str().expect("UTF-8");
    let serve = [
        "stream", "serve", "slides", "--from", from, "--rate", "100", "--count", "5",
    ];
    let json = daemon.takt(&[&serve[..], &["--json"]].concat()).json();
    assert_eq!(
        json["pictures"],
        serde_json::json!({"skipped": 2}),
        "{json}"
    );
    let ran = daemon.takt(&serve);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for told in [
        "/1.png: ",
        "/3.ppm: ",
        "2 picture(s) skipped that could not be read",
        "5 frame(s) sent in ",
        ", 5 without a viewer",
    ] {
        assert_eq!(ran.err.matches(told).count(), 1, "{told}: {ran:?}");
    }
    std::fs::remove_file(pictures.join("2.ppm")).expect("a file");
    let ran = daemon.takt(&serve);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.err.contains("/pictures can be read: put some there"),
        "{ran:?}"
    );
}
