//! What a reload changes, what it reports, and what it leaves alone.

mod support;

use support::{Daemon, LISTENER, configuration};
use takt_testing::Directory;
use taktd::admin::client::Client;
use taktd::admin::proto::{
    AddPeerRequest, ChannelRange, ListListenersRequest, ListPeersRequest, Listener, ReloadRequest,
    ReloadResponse, RemovePeerRequest, SetListenerRequest,
};
use tonic::Code;

const SIGHUP: i32 = 1;

async fn reload(client: &mut Client) -> ReloadResponse {
    let response = client.reload(ReloadRequest {}).await;
    response.expect("a good configuration").into_inner()
}

async fn listeners(client: &mut Client) -> Vec<(String, u64)> {
    let list = client.list_listeners(ListListenersRequest {}).await;
    let list = list.expect("listeners").into_inner().listeners;
    list.into_iter()
        .filter_map(|status| status.listener)
        .map(|listener| (listener.identity, listener.messages_per_second))
        .collect()
}

async fn peers(client: &mut Client) -> Vec<String> {
    let list = client.list_peers(ListPeersRequest {}).await;
    let mut list: Vec<String> = list
        .expect("peers")
        .into_inner()
        .peers
        .into_iter()
        .map(|peer| peer.address)
        .collect();
    list.sort();
    list
}

fn listener(name: &str, rate: u64) -> String {
    format!(
        "[[listener]]\npath = \"DIR/{name}.sock\"\nidentity = \"{name}\"\nmessages_per_second = {rate}\n"
    )
}

#[tokio::test]
async fn nothing_is_reported_where_nothing_differs() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    assert_eq!(reload(&mut client).await, ReloadResponse::default());
}

#[tokio::test]
async fn a_peer_whose_lines_do_not_change_keeps_the_keys_that_it_has_been_given_since() {
    let key = || taktd::security::PrivateKey::generate().public().to_string();
    let [old, next] = [key(), key()];
    let file = |address: &str| format!("[[peer]]\naddress = \"{address}\"\nkey = \"{old}\"\n");
    let daemon = Daemon::start(&(LISTENER.to_owned() + &file("127.0.0.2")));
    let mut client = daemon.client().await;
    let given = AddPeerRequest {
        address: "127.0.0.2".into(),
        key: old.clone(),
        next_key: next.clone(),
    };
    client.add_peer(given).await.expect("added");
    daemon.write(&(LISTENER.to_owned() + &file("127.0.0.2") + &file("127.0.0.3")));
    let report = reload(&mut client).await;
    assert_eq!(report.changed, ["peer 127.0.0.3:7400 added"]);
    let list = client.list_peers(ListPeersRequest {}).await;
    let list = list.expect("peers").into_inner().peers;
    let of = |address: &str| list.iter().find(|peer| peer.address == address);
    assert_eq!(of("127.0.0.2:7400").expect("there").next_key, next);
    // One that was taken out is there again.
    let gone = RemovePeerRequest {
        address: "127.0.0.2".into(),
    };
    client.remove_peer(gone).await.expect("removed");
    let report = reload(&mut client).await;
    assert_eq!(report.changed, ["peer 127.0.0.2:7400 added"]);
}

#[tokio::test]
async fn listeners_of_the_file_come_change_and_go_and_others_stay() {
    let daemon = Daemon::start(&(listener("a", 1) + &listener("b", 1)));
    let mut client = daemon.client().await;
    let of_the_api = Listener {
        path: daemon.directory.join("api.sock").display().to_string(),
        identity: "api".into(),
        classes: vec![0],
        ..Listener::default()
    };
    let set = SetListenerRequest {
        listener: Some(of_the_api),
        keep: false,
        ..SetListenerRequest::default()
    };
    client.set_listener(set).await.expect("set");
    daemon.write(&(listener("b", 2) + &listener("c", 3)));
    let report = reload(&mut client).await;
    let expected = [
        ("a.sock", "removed"),
        ("b.sock", "changed"),
        ("c.sock", "added"),
    ];
    assert_eq!(report.changed.len(), expected.len(), "{report:?}");
    for (line, (path, verb)) in report.changed.iter().zip(expected) {
        assert!(line.contains(path) && line.ends_with(verb), "{line}");
    }
    assert!(report.failed.is_empty() && report.needs_restart.is_empty());
    let expected = [("api", 0), ("b", 2), ("c", 3)].map(|(name, rate)| (name.to_owned(), rate));
    assert_eq!(listeners(&mut client).await, expected);
    assert!(!daemon.directory.join("a.sock").exists());
    assert!(daemon.directory.join("c.sock").exists());
}

/// A configuration of a node that keeps listeners over a restart.
fn with_state(directory: &Directory, more: &str) -> String {
    let state = directory.join("state");
    let node = format!("[node]\nstate = \"{}\"\n", state.display());
    configuration(directory, more).replacen("[node]\n", &node, 1)
}

#[tokio::test]
async fn what_a_reload_changes_or_removes_does_not_come_back_with_what_was_kept() {
    const UNTOLD: &str = "the configured listener is not in force";
    let write = |directory: &Directory, more: &str| {
        let file = directory.join("takt.toml");
        std::fs::write(file, with_state(directory, more)).expect("write");
    };
    let named = |all: &[(&str, u64)]| -> Vec<_> {
        let all = all.iter();
        all.map(|(name, rate)| ((*name).to_owned(), *rate))
            .collect()
    };
    let directory = Directory::new();
    let before = listener("a", 1) + &listener("b", 1) + &listener("d", 1);
    write(&directory, &before);
    let daemon = Daemon::start_in(directory);
    let mut client = daemon.client().await;
    for (name, rate) in [("a", 100), ("b", 100), ("c", 100), ("d", 1)] {
        let kept = Listener {
            path: daemon.directory.join(name).display().to_string() + ".sock",
            identity: name.into(),
            classes: (0..8).collect(),
            write: vec![ChannelRange::default()],
            messages_per_second: rate,
            ..Listener::default()
        };
        let set = SetListenerRequest {
            listener: Some(kept),
            keep: true,
            ..SetListenerRequest::default()
        };
        client.set_listener(set).await.expect("set");
    }
    daemon.signal(9);
    let (_, log, directory) = daemon.end();
    assert!(!log.contains(UNTOLD), "{log}");
    // What was kept goes before the file, and that is told.
    let daemon = Daemon::start_in(directory);
    let mut client = daemon.client().await;
    let kept = named(&[("a", 100), ("b", 100), ("c", 100), ("d", 1)]);
    assert_eq!(listeners(&mut client).await, kept);
    write(&daemon.directory, &listener("a", 2));
    let report = reload(&mut client).await;
    assert!(report.failed.is_empty(), "{report:?}");
    let now = named(&[("a", 2), ("c", 100)]);
    assert_eq!(listeners(&mut client).await, now);
    daemon.signal(9);
    let (_, log, directory) = daemon.end();
    for name in ["a.sock", "b.sock"] {
        let told = |line: &str| line.contains(UNTOLD) && line.contains(name);
        assert!(log.lines().any(told), "{name}: {log}");
    }
    let daemon = Daemon::start_in(directory);
    let mut client = daemon.client().await;
    assert_eq!(listeners(&mut client).await, now);
    daemon.signal(9);
    let (_, log, _directory) = daemon.end();
    assert!(!log.contains(UNTOLD), "{log}");
}

#[tokio::test]
async fn a_listener_that_cannot_be_opened_is_reported_and_tried_again_at_the_next_reload() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let blocker = daemon.directory.join("new.sock");
    std::fs::write(&blocker, "").expect("write");
    daemon.write(&(LISTENER.to_owned() + &listener("new", 1)));
    let report = reload(&mut client).await;
    assert!(report.changed.is_empty(), "{report:?}");
    assert_eq!(report.failed.len(), 1);
    assert!(report.failed[0].contains("is no socket"), "{report:?}");
    std::fs::remove_file(&blocker).expect("removed");
    let report = reload(&mut client).await;
    assert!(report.failed.is_empty(), "{report:?}");
    assert!(report.changed[0].ends_with("added"), "{report:?}");
}

#[tokio::test]
async fn peers_of_the_file_come_and_go_and_those_of_the_api_stay() {
    let peer = |address: &str| format!("[[peer]]\naddress = \"{address}\"\n");
    let daemon = Daemon::start(&(peer("127.0.0.2") + LISTENER));
    let mut client = daemon.client().await;
    let address = "127.0.0.9".into();
    client
        .add_peer(AddPeerRequest {
            address,
            ..AddPeerRequest::default()
        })
        .await
        .expect("added");
    daemon.write(&(peer("127.0.0.3") + LISTENER));
    let report = reload(&mut client).await;
    assert_eq!(
        report.changed,
        ["peer 127.0.0.2:7400 removed", "peer 127.0.0.3:7400 added"]
    );
    assert_eq!(
        peers(&mut client).await,
        ["127.0.0.3:7400", "127.0.0.9:7400"]
    );
}

#[tokio::test]
async fn networks_mapping_drain_and_level_change_at_once() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let more = format!("[mapping]\nfast_frugal = []\n[log]\nlevel = \"warn\"\n{LISTENER}");
    daemon.write(&more);
    let text = std::fs::read_to_string(daemon.file()).expect("read");
    let text = text.replace(
        "drain_seconds = 60",
        "drain_seconds = 1\naccept = [\"10.0.0.0/8\"]",
    );
    std::fs::write(daemon.file(), text).expect("write");
    let report = reload(&mut client).await;
    assert_eq!(
        report.changed,
        [
            "node.accept changed",
            "mapping changed",
            "node.drain_seconds changed",
            "log.level changed"
        ]
    );
    assert!(report.needs_restart.is_empty() && report.failed.is_empty());
    let session = daemon.application("app");
    let stream = session.stream(takt::Qos::fast()).expect("a stream");
    let warning = stream.warning().expect("a warning");
    assert!(warning.contains("using kernel UDP"), "{warning}");
}

#[tokio::test]
async fn what_cannot_change_is_reported_by_name_until_the_restart() {
    let daemon = Daemon::start(LISTENER);
    let mut client = daemon.client().await;
    let more = format!(
        "[[lane]]\nidle = \"park\"\n[[class]]\nnumber = 6\nlanes = [0]\n\
         [[schedule]]\ndatapath = \"udp\"\nfile = \"DIR/schedule.toml\"\n[limits]\nreassemblies = 5\n[departure]\ntolerance_us = 7\n[clock]\nchrony = \"none\"\n[datapath.udp]\nframes = 9\n\
         [datapath.xdp]\ninterface = \"eth9\"\n[metrics]\naddress = \"127.0.0.1:1\"\n[log]\nformat = \"json\"\n{LISTENER}"
    );
    let schedule = "cycle-time = \"1ms\"\n[[entry]]\ngates = [0]\ninterval = \"1ms\"\n";
    std::fs::write(daemon.directory.join("schedule.toml"), schedule).expect("write");
    daemon.write(&more);
    let text = std::fs::read_to_string(daemon.file()).expect("read");
    let text = text
        .replace("\"test\"", "\"renamed\"")
        .replace("port = 0", "port = 7777\nstate = \"/nonexistent\"")
        .replace("127.0.0.1\"\nport", "127.0.0.2\"\nport")
        .replace("admin.sock\"", "admin2.sock\"");
    std::fs::write(daemon.file(), text).expect("write");
    // As long as it is so, and not only the first time.
    for _ in 0..2 {
        let report = reload(&mut client).await;
        assert_eq!(
            report.needs_restart,
            [
                "node.name",
                "node.address",
                "node.port",
                "node.state",
                "lane",
                "class",
                "schedule",
                "limits",
                "departure",
                "clock",
                "datapath.udp",
                "datapath.xdp",
                "admin",
                "metrics",
                "log.format"
            ]
        );
        assert!(report.changed.is_empty(), "{report:?}");
    }
    daemon.write(LISTENER);
    assert_eq!(reload(&mut client).await, ReloadResponse::default());
}

#[tokio::test]
async fn an_unusable_file_changes_nothing_and_the_place_of_the_fault_is_told() {
    let daemon = Daemon::start(&listener("a", 1));
    let mut client = daemon.client().await;
    daemon.write(&(listener("b", 1) + "mode = 5\n"));
    let refused = client.reload(ReloadRequest {}).await.expect_err("a fault");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused
            .message()
            .contains("takt.toml:15:8: `listener[0].mode` = 5"),
        "{refused}"
    );
    assert_eq!(listeners(&mut client).await, [("a".to_owned(), 1)]);
    std::fs::remove_file(daemon.file()).expect("removed");
    let refused = client.reload(ReloadRequest {}).await.expect_err("no file");
    assert!(refused.message().contains("cannot read"), "{refused}");
    assert_eq!(listeners(&mut client).await, [("a".to_owned(), 1)]);
}

#[tokio::test]
async fn a_hangup_reloads_and_tells_the_service_manager() {
    let mut daemon = Daemon::start(&listener("a", 1));
    let mut client = daemon.client().await;
    daemon.write(&listener("b", 1));
    daemon.signal(SIGHUP);
    daemon.expect_notification("RELOADING=1");
    daemon.expect_notification("READY=1");
    assert_eq!(listeners(&mut client).await, [("b".to_owned(), 1)]);
    // A fault is logged, and the node runs on.
    daemon.write("[nonsense]\n");
    daemon.signal(SIGHUP);
    daemon.expect_notification("RELOADING=1");
    daemon.expect_notification("READY=1");
    assert_eq!(listeners(&mut client).await, [("b".to_owned(), 1)]);
    daemon.signal(15);
    let (code, log, _directory) = daemon.end();
    assert_eq!(code, Some(0));
    assert!(log.contains("`nonsense`"), "{log}");
}
