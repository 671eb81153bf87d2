//! Plugins keep the rules of a datapath: one in C (`examples/datapath-lossy`), and one in Rust, by way of the table and the loader.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use takt_datapath::conformance::{Node, Rig};
use takt_datapath::plugin::{Options, Plugin};
use takt_datapath::{Datapath, PortRequest, ReserveError};
use takt_testing::{Directory, repository};
use takt_time::TrafficClass;

fn run(command: &mut Command) {
    let output = command.output().expect("it starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {told}");
}

/// The directory of an example of this package, built as this test is.
fn example(name: &str) -> PathBuf {
    let program = std::env::current_exe().expect("the test's own path");
    // target/debug/deps/plugins-...
    let profile = program.ancestors().nth(2).expect("the profile's directory");
    let profile_name = match profile.file_name().expect("a name").to_string_lossy() {
        name if name == "debug" => "dev".to_owned(),
        name => name.into_owned(),
    };
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    build
        .args([
            "build",
            "--quiet",
            "-p",
            env!("CARGO_PKG_NAME"),
            "--example",
            name,
        ])
        .args(["--profile", &profile_name, "--target-dir"])
        .arg(profile.parent().expect("the target directory"))
        .current_dir(repository());
    run(&mut build);
    profile.join("examples")
}

/// A directory with both plugins, for the whole run of the tests.
fn directory() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Directory::new();
        let lossy = directory.join("libtakt_datapath_lossy.so");
        let mut cc = Command::new("cc");
        cc.args([
            "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I",
        ])
        .arg(repository().join("include"))
        .arg(repository().join("examples/datapath-lossy/lossy.c"))
        .arg("-o")
        .arg(&lossy);
        run(&mut cc);
        let built = example("takt_datapath_sockets").join("libtakt_datapath_sockets.so");
        let sockets = directory.join("libtakt_datapath_sockets.so");
        std::fs::copy(built, sockets).expect("a copy");
        let path = directory.path().to_owned();
        // Loaded for good, and removed at once: nobody reads the files again.
        for name in ["lossy", "sockets"] {
            PLUGINS[usize::from(name == "sockets")]
                .set(Plugin::load(&path, name).expect("a plugin"))
                .expect("once");
        }
        path
    })
}

static PLUGINS: [OnceLock<Plugin>; 2] = [const { OnceLock::new() }; 2];

/// Both nodes are this host.
struct Loopback(Arc<dyn Datapath>);

impl Loopback {
    fn new(name: &str, options: &[(&str, &str)]) -> Option<Self> {
        directory();
        let plugin = PLUGINS[usize::from(name == "sockets")].get()?;
        let text = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let datapath = plugin.create(&Options(options.iter().map(text).collect()));
        Some(Self(datapath.expect("a datapath").into()))
    }
}

impl Rig for Loopback {
    fn datapath(&mut self, _node: Node) -> Arc<dyn Datapath> {
        self.0.clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        match node {
            Node::Left => [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from),
            Node::Right => [[127, 0, 0, 3], [127, 0, 0, 4]].map(IpAddr::from),
        }
    }
}

takt_datapath::conformance_suite!(in_c, Loopback::new("lossy", &[]));
takt_datapath::conformance_suite!(in_rust, Loopback::new("sockets", &[]));

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    directory();
    let refused = [
        (
            0,
            "loss",
            "110",
            "`loss` is 110: write a number from 0 to 100",
        ),
        (0, "losss", "1", "`losss` is no option: there are loss,"),
        (
            0,
            "fails_with",
            "broken",
            "`fails_with` is broken: write the whole path of a file",
        ),
        (1, "frames", "many", "`frames` is \"many\": write a number"),
        (
            1,
            "rings",
            "1",
            "`rings` is no option: there are frames, segmentation",
        ),
    ];
    for (plugin, key, value, told) in refused {
        let plugin = PLUGINS[plugin].get().expect("loaded");
        let options = Options(vec![(key.to_owned(), value.to_owned())]);
        let error = plugin.create(&options).err().expect("refused").to_string();
        assert!(error.contains(told), "{error}");
    }
}

#[test]
fn a_plugin_says_that_it_has_failed_and_then_reaches_nobody() {
    let files = Directory::new();
    let broken = files.join("broken");
    let path = broken.to_str().expect("a path in UTF-8");
    let mut rig = Loopback::new("lossy", &[("fails_with", path)]).expect("a rig");
    let datapath = rig.datapath(Node::Left);
    let health = datapath.health(Box::new(|| ())).expect("it tells");
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: (rig.addresses(Node::Left)[0], 0).into(),
    };
    let mut port = datapath.open(&request).expect("a port");
    let peer = port.connect(port.local()).expect("a peer");
    for _ in 0..3 {
        assert_eq!(health.fault(), None);
        assert!(port.reaches(peer));
        let frame = port.reserve(peer).expect("a frame");
        std::fs::write(&broken, "").expect("written");
        assert_eq!(
            health.fault(),
            Some(format!("there is a file {path}: remove it"))
        );
        assert!(!port.reaches(peer));
        assert_eq!(port.reserve(peer).err(), Some(ReserveError::Unresolved));
        // What was begun is given up without harm.
        port.commit(frame, 8, TrafficClass::BEST_EFFORT, None);
        assert!(port.flush());
        // What arrives is lost, within the budget, and counted.
        let before = port.counters().rx_dropped;
        for _ in 0..3 {
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
            sender.send_to(b"lost", port.local()).expect("sent");
        }
        for (budget, lost) in [(2, 2), (8, 3)] {
            assert_eq!(port.receive(budget, &mut |_| panic!("it has failed")), 0);
            assert_eq!(port.counters().rx_dropped, before + lost);
        }
        std::fs::remove_file(&broken).expect("removed");
    }
}
