//! Which technologies this node has: the one place, with the embedded form, that chooses datapaths.

pub mod probe;

use std::sync::Arc;

use takt_datapath::Datapath;
use takt_datapath::plugin::Plugin;
use takt_datapath_udp::{Priorities, UdpDatapath};
use takt_datapath_xdp::XdpDatapath;
use takt_runtime::Unavailable;

use crate::config::Settings;

/// The datapaths of a node, and those that are configured and unavailable.
pub struct Assembled {
    /// Kernel UDP first.
    pub datapaths: Vec<Arc<dyn Datapath>>,
    /// With reasons.
    pub unavailable: Vec<Unavailable>,
    /// Those of the packets of kernel UDP.
    pub priorities: Priorities,
}

/// Probes what the settings ask for, in the network namespace of the calling thread. What fails is no
/// error: streams fall back to kernel UDP and tell their applications why.
pub fn assemble(settings: &Settings) -> Assembled {
    let udp = UdpDatapath::new(settings.udp.clone());
    let mut assembled = Assembled {
        priorities: udp.priorities(),
        datapaths: vec![Arc::new(udp)],
        unavailable: Vec::new(),
    };
    if let Some(config) = &settings.xdp {
        match XdpDatapath::probe(config.clone()) {
            Ok(datapath) => assembled.datapaths.push(Arc::new(datapath)),
            Err(error) => {
                let text = error.to_string();
                // The kernel's verifier may add pages, which only developers of the program can use.
                let (reason, rest) = text.split_once('\n').unwrap_or((&text, ""));
                tracing::warn!(
                    interface = config.interface,
                    error = reason,
                    "no AF_XDP here: fast streams will use kernel UDP"
                );
                if !rest.is_empty() {
                    tracing::debug!("more on that: {rest}");
                }
                assembled.unavailable.push(Unavailable {
                    name: XdpDatapath::KIND.0.into(),
                    reason: reason.to_owned(),
                });
            }
        }
    }
    let (directory, plugins) = &settings.plugins;
    for (name, options) in plugins {
        let made = Plugin::load(directory, name)
            .map_err(|error| error.to_string())
            .and_then(|plugin| plugin.create(options).map_err(|error| error.to_string()));
        match made {
            Ok(datapath) => assembled.datapaths.push(datapath.into()),
            Err(reason) => {
                tracing::warn!(
                    name,
                    error = reason,
                    "a datapath is not there: streams that would use it take another"
                );
                assembled.unavailable.push(Unavailable {
                    name: name.as_str().into(),
                    reason,
                });
            }
        }
    }
    assembled
}
