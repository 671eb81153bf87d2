//! Huge pages that there are not: alone in its process, for DPDK starts once.

mod support;

use takt_datapath_dpdk::{DpdkConfig, DpdkDatapath, HugePages};

#[test]
fn missing_huge_pages_are_refused_before_dpdk_has_started_or_done_without() {
    let directory = support::Directory::new();
    let device = format!(
        "net_memif0,role=server,socket-abstract=no,socket={}",
        directory.0.join("m").display()
    );
    let wanted = DpdkConfig {
        addresses: support::subnets(0, support::Family::V4).to_vec(),
        huge_pages: HugePages::On,
        // More than any machine has.
        memory: 65_536,
        ..DpdkConfig::new(&device)
    };
    let error = DpdkDatapath::probe(&wanted)
        .expect_err("too much")
        .to_string();
    assert!(error.contains("sysctl vm.nr_hugepages=32768"), "{error}");
    let without = DpdkConfig {
        huge_pages: HugePages::Off,
        memory: 128,
        ..wanted.clone()
    };
    let datapath = DpdkDatapath::probe(&without).expect("without");
    let detail = takt_datapath::Datapath::capabilities(&datapath).detail;
    assert!(detail.contains("slower"), "{detail}");
    drop(datapath);
    let error = DpdkDatapath::probe(&wanted)
        .expect_err("too late")
        .to_string();
    assert!(error.contains("runs without them"), "{error}");
}
