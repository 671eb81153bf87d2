//! The shared object keeps the rules of a datapath as well, by way of the table and the loader.

mod support;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use support::{Directory, Family, memif, subnets};
use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath::plugin::{Options, Plugin};

/// The plugin as this test was built.
fn plugin() -> &'static Plugin {
    static LOADED: OnceLock<Plugin> = OnceLock::new();
    LOADED.get_or_init(|| {
        let program = std::env::current_exe().expect("the test's own path");
        // Cargo puts both beside each other.
        let built = program.parent().expect("a directory");
        let directory = Directory::new();
        let name = "libtakt_datapath_dpdk.so";
        std::fs::copy(built.join(name), directory.0.join(name)).expect("a copy");
        Plugin::load(&directory.0, "dpdk").expect("a plugin")
    })
}

/// Two ends of a memif.
struct Memif {
    datapaths: [Arc<dyn Datapath>; 2],
    _directory: Directory,
}

impl Memif {
    fn new() -> Option<Self> {
        let directory = Directory::new();
        let socket = directory.0.join("memif.sock");
        let datapath = |(role, index)| -> Arc<dyn Datapath> {
            let mut options = vec![
                ("device", memif(role, &socket)),
                ("hugepages", "off".into()),
            ];
            for own in subnets(index, Family::V4) {
                options.push(("address", format!("{}/{}", own.address, own.prefix)));
            }
            let options = options
                .into_iter()
                .map(|(key, value)| (key.to_owned(), value));
            plugin()
                .create(&Options(options.collect()))
                .expect("a datapath")
                .into()
        };
        Some(Self {
            datapaths: [("server", 0), ("client", 1)].map(datapath),
            _directory: directory,
        })
    }
}

impl Rig for Memif {
    fn datapath(&mut self, node: Node) -> Arc<dyn Datapath> {
        self.datapaths[node as usize].clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        subnets(node as usize, Family::V4).map(|own| own.address)
    }

    fn holds_senders_back(&self) -> bool {
        true
    }

    fn wakes_by_the_clock(&self) -> bool {
        true
    }
}

takt_datapath::conformance_suite!(memif, Memif::new());

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let options = Options(vec![("colour".into(), "red".into())]);
    let error = plugin()
        .create(&options)
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("unknown key \"colour\"; there are device"),
        "{error}"
    );
}
