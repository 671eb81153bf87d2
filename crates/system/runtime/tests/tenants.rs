//! What tenants may do while operators change it, and what they have counted.

mod support;

use std::os::unix::fs::{PermissionsExt, symlink};

use support::{App, config, free_port, listening, start};
use takt_runtime::config::ListenerConfig;
use takt_runtime::control::ListenError;
use takt_runtime::policy::Policy;
use takt_runtime::status::TenantStatus;
use takt_session::message::Request;
use takt_session::{ChannelId, ErrorCode, Qos};
use takt_testing::until_true;

#[test]
fn rights_can_be_taken_away_after_a_change_that_has_failed() {
    let (runtime, directory, _) = listening(Policy::default());
    let path = directory.join("tenant.sock");
    let mut app = App::over(support::connect(&path));
    let stream = app.stream(Qos::slow());
    let narrower = |mode| {
        let config = ListenerConfig {
            path: path.clone(),
            mode,
            policy: Policy {
                write: vec![1..=1],
                ..Policy::default()
            },
        };
        runtime.handle().set_listener(config).expect("running")
    };
    std::fs::remove_file(&path).expect("removed");
    let failed = narrower(0o660).expect_err("there is no file");
    assert!(matches!(failed, ListenError::System { .. }), "{failed}");
    app.source(stream, 5, 0);
    narrower(0o600).expect("nothing is to be done with the file");
    let refused = app.ask(Request::OpenSource {
        stream,
        channel: ChannelId(5),
        depth: 0,
        origin: 0,
        first: 0,
    });
    let refused = refused.expect_err("taken away");
    assert_eq!(refused.code, ErrorCode::NotPermitted, "{refused}");
}

#[test]
fn a_link_at_a_listeners_path_leaves_the_mode_of_what_it_names() {
    let (runtime, directory, _) = listening(Policy::default());
    let (path, other) = (directory.join("tenant.sock"), directory.join("other"));
    std::fs::write(&other, "a secret").expect("written");
    let mode_of_other = || {
        let about = std::fs::metadata(&other).expect("it is there");
        about.permissions().mode() & 0o777
    };
    let before = mode_of_other();
    std::fs::remove_file(&path).expect("removed");
    symlink(&other, &path).expect("a link");
    let set = runtime.handle().set_listener(ListenerConfig {
        path,
        mode: 0o666,
        policy: Policy::default(),
    });
    let refused = set.expect("running").expect_err("a link");
    assert!(matches!(refused, ListenError::NoSocket(_)), "{refused}");
    assert_eq!(mode_of_other(), before);
}

#[test]
fn what_a_tenant_has_counted_stays_when_its_session_ends() {
    let runtime = start(config(free_port(), &[]));
    let handle = runtime.handle();
    let policy = Policy {
        identity: "press".into(),
        ..Policy::default()
    };
    let press = || -> TenantStatus {
        let tenants = handle.tenants().expect("running");
        let found = tenants.into_iter().find(|t| t.identity == "press");
        found.expect("a tenant that has attached")
    };
    let mut app = App::attach_with(handle, policy);
    let stream = app.stream(Qos::slow());
    let mut source = app.source(stream, 5, 0);
    app.emit(&mut source, 0, b"nobody", 1);
    app.completion(&mut source);
    until_true("the message is counted", || press().counters.emitted == 1);
    assert_eq!((press().sessions, press().ended), (1, 0));
    drop(source);
    drop(app);
    until_true("the session has ended", || press().ended == 1);
    assert_eq!((press().sessions, press().counters.emitted), (0, 1));
    assert_eq!(press().counters.emitted_bytes, 6);
}
