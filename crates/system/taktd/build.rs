//! Generates the admin API from its contract. The compiler of contracts is a library: no `protoc` needed.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let contracts = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../proto");
    let admin = contracts.join("takt/admin/v1/admin.proto");
    println!("cargo::rerun-if-changed={}", admin.display());
    let descriptors = protox::compile([&admin], [&contracts])?;
    // JSON of the command line is made from the messages: numbers of enums become their names there.
    let named = [
        ("Peer.state", "peer_state"),
        ("Stream.acceleration", "acceleration"),
        ("Stream.resource_use", "resource_use"),
        ("Listener.mode", "octal"),
        ("Clock.state", "clock_state"),
        ("Node.clock_state", "clock_state"),
        ("Node.protection", "protection"),
    ];
    let hexadecimal = ["Node.incarnation", "Peer.incarnation"];
    let mut builder =
        tonic_prost_build::configure().message_attribute(".", "#[derive(serde::Serialize)]");
    for (field, function) in named {
        builder = builder.field_attribute(
            format!("takt.admin.v1.{field}"),
            format!("#[serde(serialize_with = \"crate::admin::json::{function}\")]"),
        );
    }
    for field in hexadecimal {
        builder = builder.field_attribute(
            format!("takt.admin.v1.{field}"),
            "#[serde(serialize_with = \"crate::admin::json::hexadecimal\")]",
        );
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
