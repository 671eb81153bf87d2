//! The shared object keeps the rules of a datapath as well, by way of the table and the loader.

mod support;

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use support::probe;
use takt_datapath::Datapath;
use takt_datapath::conformance::{Node, Rig};
use takt_datapath::plugin::{Options, Plugin};
use takt_datapath_fabric::{FabricConfig, Provider};

/// The plugin as this test was built.
fn plugin() -> &'static Plugin {
    static LOADED: OnceLock<Plugin> = OnceLock::new();
    LOADED.get_or_init(|| {
        let program = std::env::current_exe().expect("the test's own path");
        // Cargo puts both beside each other.
        let built = program.parent().expect("a directory");
        let directory = std::env::temp_dir().join(format!("takt-fabric-so-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let name = "libtakt_datapath_fabric.so";
        std::fs::copy(built.join(name), directory.join(name)).expect("a copy");
        let loaded = Plugin::load(&directory, "fabric").expect("a plugin");
        std::fs::remove_dir_all(&directory).expect("ours");
        loaded
    })
}

fn options(pairs: &[(&str, &str)]) -> Options {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    Options(pairs.iter().map(owned).collect())
}

struct Loaded(Arc<dyn Datapath>);

impl Loaded {
    fn new() -> Option<Self> {
        probe(&FabricConfig::new(Provider::Tcp))?;
        let options = options(&[("provider", "tcp"), ("sends", "64")]);
        Some(Self(plugin().create(&options).expect("a datapath").into()))
    }
}

impl Rig for Loaded {
    fn datapath(&mut self, _node: Node) -> Arc<dyn Datapath> {
        self.0.clone()
    }

    fn addresses(&mut self, node: Node) -> [IpAddr; 2] {
        match node {
            Node::Left => [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from),
            Node::Right => [[127, 0, 0, 3], [127, 0, 0, 4]].map(IpAddr::from),
        }
    }

    fn holds_senders_back(&self) -> bool {
        true
    }

    fn reaches_a_port_at_two_addresses(&self) -> bool {
        false
    }
}

takt_datapath::conformance_suite!(loaded, Loaded::new());

#[test]
fn options_that_cannot_be_are_refused_by_name() {
    let error = plugin()
        .create(&options(&[("colour", "red")]))
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("unknown key \"colour\"; there are provider"),
        "{error}"
    );
}
