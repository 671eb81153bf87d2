//! A datapath in Rust as a plugin: kernel UDP, which is built in as well, under the name `sockets`.
//!
//! `cargo build -p takt-datapath-udp --example takt_datapath_sockets` makes `libtakt_datapath_sockets.so`.

use takt_datapath::{Datapath, OpenError};
use takt_datapath_udp::{UdpConfig, UdpDatapath};

takt_datapath::export_datapath!("sockets", env!("CARGO_PKG_VERSION"), |options| {
    options
        .only(&["frames", "segmentation"])
        .map_err(OpenError::Unavailable)?;
    let usual = UdpConfig::default();
    let frames = options
        .parse("frames", "a number")
        .map_err(OpenError::Unavailable)?;
    let segmentation = options
        .parse("segmentation", "true or false")
        .map_err(OpenError::Unavailable)?;
    let config = UdpConfig {
        frames: frames.unwrap_or(usual.frames),
        segmentation: segmentation.unwrap_or(usual.segmentation),
        receive_buffer: 1 << 20,
        // Ports of plugins have a single descriptor to wait for.
        class_buffers: false,
        ..usual
    };
    Ok(Box::new(UdpDatapath::new(config)) as Box<dyn Datapath>)
});
