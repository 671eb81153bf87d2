//! What tenants have counted, for operators.

mod support;

use support::{App, config, free_port, start};
use takt_runtime::policy::Policy;
use takt_runtime::status::TenantStatus;
use takt_session::Qos;
use takt_testing::until_true;

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
