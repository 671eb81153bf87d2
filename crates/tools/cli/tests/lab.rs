//! `takt lab`: real namespaces. Needs root; skips with a reason otherwise.

mod support;

use support::run;

/// Takes the lab down even when the test fails.
struct Cleanup(String);

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = takt_lab::Lab::down(&self.0);
    }
}

#[test]
fn a_lab_is_made_listed_used_and_removed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let name = format!("takt-t-{}-cli", std::process::id());
    let _cleanup = Cleanup(name.clone());
    let ran = run(&["lab", "up", &name, "--network", "10.78.0.0/24", "--json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let hosts = ran.json();
    assert_eq!(hosts[1]["address"], "10.78.0.2");
    let ran = run(&["lab", "up", &name]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let ran = run(&["lab", "list"]);
    assert!(ran.out.contains(&name), "{ran:?}");
    let inside = ["lab", "exec", "--lab", &name, "h1", "--"];
    let ran = run(&[&inside[..], &["ping", "-c", "1", "-W", "10", "10.78.0.2"]].concat());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let ran = run(&[&inside[..], &["sh", "-c", "exit 7"]].concat());
    assert_eq!(ran.code, Some(7), "{ran:?}");
    let ran = run(&["lab", "exec", "--lab", &name, "h9", "--", "true"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.err.contains("it has h1, h2"), "{ran:?}");
    assert_eq!(run(&["lab", "down", &name]).code, Some(0));
    assert_eq!(run(&["lab", "down", &name]).code, Some(1));
}
