//! Memory that was used once and is free goes back to the kernel. In a program of its own: what is measured is the process's.

use std::hint::black_box;

/// Private memory of this process that is there, KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse().unwrap()
}

#[test]
fn what_many_sessions_had_at_one_time_is_given_back() {
    // From which glibc learns to keep pieces of that size.
    drop(black_box(vec![1u8; 16 << 20]));
    let before = resident_kib();
    // Tables, each with something small behind it that stays.
    let pieces: Vec<_> = (0..128)
        .map(|_| black_box((vec![1u8; 256 << 10], vec![1u8; 64])))
        .collect();
    let most = resident_kib();
    let (tables, kept): (Vec<_>, Vec<_>) = pieces.into_iter().unzip();
    drop(tables);
    takt_shm::heap::give_back();
    let after = resident_kib();
    assert!(most >= before + (32 << 10), "{before} {most}");
    assert!(after <= before + (1 << 10), "{before} {most} {after}");
    drop(black_box(kept));
}
