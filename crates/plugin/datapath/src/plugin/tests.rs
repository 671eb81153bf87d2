use std::ffi::CStr;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use takt_testing::{Directory, repository};

use super::*;
use crate::memory::{MemoryNetwork, MemoryNetworkConfig};
use crate::{
    Capabilities, Datapath, DatapathKind, Health, OpenError, PeerHandle, Port, PortRequest,
};

/// Builds a plugin of this text in C. `name` is the file's.
fn build(directory: &Directory, name: &str, source: &str) -> PathBuf {
    let file = directory.join("plugin.c");
    std::fs::write(&file, source).expect("written");
    let output = directory.join(&file_name(name));
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-I"])
        .arg(repository().join("include"))
        .arg(&file)
        .arg("-o")
        .arg(&output)
        .output()
        .expect("cc starts");
    let told = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{told}");
    output
}

fn refused(directory: &Path, name: &str) -> String {
    let error = Plugin::load(directory, name).expect_err("refused");
    error.to_string()
}

/// The table of a plugin that has some functions.
fn table(fields: &str) -> String {
    format!(
        "#include \"takt_datapath.h\"
        void f(void) {{}}
        const takt_datapath_plugin_table takt_datapath_plugin = {{ {fields} }};"
    )
}

const ALL: &str = ".create = f, .destroy = f, .capabilities = f, .open = f, .close = f, .local = f, .connect = f, \
    .disconnect = f, .max_payload = f, .reserve = f, .payload = f, .commit = f, .cancel = f, .flush = f, .receive = f, \
    .receive_costs_syscall = f, .wait_fd = f, .counters = f";

#[test]
fn what_does_not_fit_is_refused_with_what_to_do() {
    let directory = Directory::new();
    let path = directory.path();
    for name in ["", "UDP", "a/b", "..", "longer-than-it-may-be"] {
        let told = refused(path, name);
        assert!(told.contains("1 to 15 lower-case letters"), "{told}");
    }
    assert!(refused(path, "none").contains("there is no plugin"));

    std::fs::write(directory.join(&file_name("text")), "no library").expect("written");
    assert!(refused(path, "text").contains("cannot be loaded: "));
    build(&directory, "nothing", "int other;");
    assert!(refused(path, "nothing").contains("does not export `takt_datapath_plugin`"));
    build(
        &directory,
        "unresolved",
        &format!(
            "void missing(void); void g(void) {{ missing(); }}\n{}",
            table(ALL)
        ),
    );
    // Bound now, not at the first call.
    assert!(refused(path, "unresolved").contains("missing"));

    let head = |name: &str| {
        format!(
            ".abi = 1, .size = sizeof(takt_datapath_plugin_table), .name = \"{name}\", .version = \"1\", "
        )
    };
    let wrong = [
        (
            "older",
            ".abi = 0, .size = 8".to_owned(),
            "interface version 0, here is 1",
        ),
        (
            "newer",
            ".abi = 2, .size = 8".to_owned(),
            "interface version 2, here is 1",
        ),
        (
            "small",
            ".abi = 1, .size = 24, .name = \"small\"".to_owned(),
            "its table has 24 octets",
        ),
        (
            "other",
            format!("{}{ALL}", head("another")),
            "it calls itself \"another\"",
        ),
        (
            "nameless",
            format!(".abi = 1, .size = sizeof(takt_datapath_plugin_table), {ALL}"),
            "it has no name",
        ),
        (
            "versionless",
            format!(
                ".abi = 1, .size = sizeof(takt_datapath_plugin_table), .name = \"versionless\", {ALL}"
            ),
            "it has no version",
        ),
        (
            "partial",
            format!("{}{}", head("partial"), ALL.replace(".flush = f, ", "")),
            "it has no function `flush`",
        ),
    ];
    for (name, fields, told) in wrong {
        build(&directory, name, &table(&fields));
        let error = refused(path, name);
        assert!(error.contains(told), "{error}");
        assert!(error.contains(&file_name(name)), "{error}");
    }

    let good = build(
        &directory,
        "good",
        &table(&format!("{}{ALL}", head("good"))),
    );
    std::fs::set_permissions(&good, Permissions::from_mode(0o666)).expect("its mode");
    assert!(refused(path, "good").contains("can be written by others (mode 666)"));
    std::fs::set_permissions(&good, Permissions::from_mode(0o644)).expect("its mode");
    std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("its mode");
    assert!(refused(path, "good").contains("can be written by others (mode 777)"));
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("its mode");
    let plugin = Plugin::load(path, "good").expect("a plugin");
    assert_eq!((plugin.version(), plugin.path()), ("1", good.as_path()));
}

#[test]
fn what_strangers_can_put_in_a_plugins_place_is_refused() {
    // SAFETY: it asks for a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: another user's link needs root");
        return;
    }
    let directory = Directory::new();
    let inner = directory.join("open");
    std::fs::create_dir(&inner).expect("a directory");
    let fields = format!(
        ".abi = 1, .size = sizeof(takt_datapath_plugin_table), .name = \"any\", .version = \"1\", {ALL}"
    );
    let good = build(&directory, "any", &table(&fields));
    let link = inner.join(file_name("any"));
    std::os::unix::fs::symlink(&good, &link).expect("a link");
    Plugin::load(&inner, "any").expect("a link of ours");
    // Where anybody may put links, this is somebody's.
    std::fs::set_permissions(&inner, Permissions::from_mode(0o1777)).expect("its mode");
    std::os::unix::fs::lchown(&link, Some(12345), None).expect("another's");
    assert!(refused(&inner, "any").contains("belongs to user 12345"));
    std::os::unix::fs::lchown(&link, Some(0), None).expect("ours");
    Plugin::load(&inner, "any").expect("a link of ours");
    // Whoever can rename a directory further up can put another in its place.
    let deep = inner.join("deep");
    std::fs::create_dir(&deep).expect("a directory");
    std::fs::copy(&good, deep.join(file_name("any"))).expect("a copy");
    std::fs::set_permissions(&inner, Permissions::from_mode(0o777)).expect("its mode");
    let told = refused(&deep, "any");
    assert!(
        told.contains("open can be written by others (mode 777)"),
        "{told}"
    );
}

/// A plugin whose port is `port` and which shows three datagrams to any receive, and says that they were a hundred.
fn careless(name: &str, port: &str) -> String {
    format!(
        "#include \"takt_datapath.h\"
        #include <sys/eventfd.h>
        void f(void) {{}}
        int create(const takt_dp_option *options, size_t count, void **datapath, takt_dp_failure *failure) {{
            *datapath = f;
            return 0;
        }}
        int open_port(void *datapath, const takt_dp_request *request, void **port, takt_dp_failure *failure) {{
            *port = {port};
            return 0;
        }}
        void local(void *port, takt_dp_address *address) {{ address->port = 7; }}
        int wait_fd(void *port) {{ static int fd; return fd ? fd : (fd = eventfd(0, 0)); }}
        size_t receive(void *port, size_t budget, takt_dp_deliver deliver, void *context) {{
            takt_dp_datagram datagram = {{ .source = {{ .family = 4, .port = 1 }}, .payload = (const uint8_t *)\"abc\", .length = 3 }};
            for (int i = 0; i < 3; i++)
                deliver(context, &datagram);
            datagram.length = (size_t)-1;
            deliver(context, &datagram);
            return 100;
        }}
        size_t max_payload(void *port, uint32_t peer) {{ return (size_t)-1; }}
        const takt_datapath_plugin_table takt_datapath_plugin = {{
            .abi = 1, .size = sizeof(takt_datapath_plugin_table), .name = \"{name}\", .version = \"1\", {}
        }};",
        ALL.replace(".create = f", ".create = create")
            .replace(".open = f", ".open = open_port")
            .replace(".local = f", ".local = local")
            .replace(".wait_fd = f", ".wait_fd = wait_fd")
            .replace(".max_payload = f", ".max_payload = max_payload")
            .replace(".receive = f", ".receive = receive")
    )
}

#[test]
fn a_plugin_that_breaks_the_contract_harms_nobody() {
    let directory = Directory::new();
    let request = PortRequest {
        lane: 0,
        lanes: 1,
        bind: "127.0.0.1:0".parse().expect("an address"),
    };
    let open = |name: &str, port: &str| {
        build(&directory, name, &careless(name, port));
        let plugin = Plugin::load(directory.path(), name).expect("a plugin");
        let datapath = plugin.create(&Options::default()).expect("a datapath");
        datapath.open(&request)
    };
    let Err(error) = open("none", "0") else {
        panic!("a port that is not there");
    };
    assert!(error.to_string().contains("a port that is NULL"), "{error}");
    let mut port = open("careless", "f").expect("a port");
    assert_eq!(port.max_payload(PeerHandle(0)), 65_535);
    for budget in [2, 5] {
        let mut shown = 0;
        let told = port.receive(budget, &mut |datagram| {
            assert_eq!(datagram.payload, b"abc");
            shown += 1;
        });
        assert_eq!((shown, told), (budget.min(3), budget.min(3)));
    }
}

/// What a plugin in C says of its state: the text of the failure that it fills, and what it gives.
#[test]
fn what_a_plugin_says_of_its_state_is_told() {
    let directory = Directory::new();
    let says = |name: &str, size: &str, text: &str, given: i32| {
        let source = format!(
            "#include \"takt_datapath.h\"
            #include <string.h>
            void f(void) {{}}
            int g(const takt_dp_option *options, size_t count, void **datapath, takt_dp_failure *failure) {{
                *datapath = f;
                return 0;
            }}
            int state(void *datapath, takt_dp_failure *failure) {{
                strcpy(failure->text, \"{text}\");
                return datapath == f ? {given} : 99;
            }}
            const takt_datapath_plugin_table takt_datapath_plugin = {{
                .abi = 1, .size = {size}, .name = \"{name}\", .version = \"1\", .fault = state, {}
            }};",
            ALL.replace(".create = f", ".create = g")
        );
        build(&directory, name, &source);
        let plugin = Plugin::load(directory.path(), name).expect("a plugin");
        let datapath = plugin.create(&Options::default()).expect("a datapath");
        let health = datapath.health(Box::new(|| panic!("plugins are asked")));
        // It is there as long as somebody asks.
        drop((datapath, plugin));
        health.map(|health| health.fault())
    };
    const ALL_OF_IT: &str = "sizeof(takt_datapath_plugin_table)";
    assert_eq!(says("well", ALL_OF_IT, "not looked at", 0), Some(None));
    assert_eq!(
        says("broken", ALL_OF_IT, "no light on port 3\\033[2J", -1),
        Some(Some("no light on port 3 [2J".into()))
    );
    assert_eq!(
        says("speechless", ALL_OF_IT, "", 7),
        Some(Some(
            "the plugin says that it has failed, and not why".into()
        ))
    );
    // Made when there was no such function.
    let before = "offsetof(takt_datapath_plugin_table, fault)";
    assert_eq!(says("older", before, "not asked", 1), None);
}

#[test]
fn what_a_plugin_in_rust_says_of_its_state_passes_the_table() {
    struct Broken;
    impl Health for Broken {
        fn fault(&self) -> Option<String> {
            Some("no light".into())
        }
    }
    /// In-process, with or without something that tells of its state.
    struct Told(MemoryNetwork, bool);
    impl Datapath for Told {
        fn kind(&self) -> DatapathKind {
            self.0.kind()
        }
        fn capabilities(&self) -> Capabilities {
            self.0.capabilities()
        }
        fn open(&self, request: &PortRequest) -> Result<Box<dyn Port>, OpenError> {
            self.0.open(request)
        }
        fn health(&self, _changed: Box<dyn Fn() + Send>) -> Option<Box<dyn Health>> {
            self.1.then(|| Box::new(Broken) as Box<dyn Health>)
        }
    }
    struct Made<const TOLD: bool>;
    impl<const TOLD: bool> Export for Made<TOLD> {
        const NAME: &'static CStr = c"told";
        const VERSION: &'static CStr = c"1";
        fn create(_options: &Options) -> Result<Box<dyn Datapath>, OpenError> {
            let network = MemoryNetwork::new(MemoryNetworkConfig::default());
            Ok(Box::new(Told(network, TOLD)))
        }
    }
    fn state<E: Export>() -> (i32, String) {
        let table = super::table::<E>();
        let (create, destroy) = (table.create.expect("there"), table.destroy.expect("there"));
        let fault = table.fault.expect("there");
        let (mut handle, mut failure) = (std::ptr::null_mut(), abi::Failure::default());
        // SAFETY: no options; places that outlive the calls; ended once, behind the last call.
        let given = unsafe {
            assert_eq!(
                create(std::ptr::null(), 0, &raw mut handle, &raw mut failure),
                0
            );
            let given = fault(handle, &raw mut failure);
            destroy(handle);
            given
        };
        (given, abi::read_text(&failure.text))
    }
    assert_eq!(state::<Made<true>>(), (-1, "no light".to_owned()));
    assert_eq!(state::<Made<false>>(), (0, String::new()));
}

#[test]
fn what_a_plugin_says_when_it_fails_is_told() {
    let directory = Directory::new();
    let says_with = |name: &str, kind: &str, number: i32, text: &str| {
        let source = format!(
            "#include \"takt_datapath.h\"
            #include <string.h>
            void f(void) {{}}
            int g(const takt_dp_option *options, size_t count, void **datapath, takt_dp_failure *failure) {{
                failure->kind = {kind};
                failure->os_error = {number};
                strcpy(failure->text, \"{text}\");
                return 1;
            }}
            const takt_datapath_plugin_table takt_datapath_plugin = {{
                .abi = 1, .size = sizeof(takt_datapath_plugin_table), .name = \"{name}\", .version = \"1\", {}
            }};",
            ALL.replace(".create = f", ".create = g")
        );
        build(&directory, name, &source);
        let plugin = Plugin::load(directory.path(), name).expect("a plugin");
        plugin
            .create(&Options::default())
            .err()
            .expect("refused")
            .to_string()
    };
    let says = |name, kind, text| says_with(name, kind, 13, text);
    assert_eq!(
        says("poor", "TAKT_DP_PRIVILEGE", "CAP_NET_RAW: run it as root"),
        "missing privilege: CAP_NET_RAW: run it as root"
    );
    assert_eq!(
        says("absent", "TAKT_DP_UNAVAILABLE", "no device\\n\\033[2J"),
        "not available here: no device  [2J"
    );
    assert_eq!(
        says("broke", "TAKT_DP_SYSTEM", "cannot open"),
        "cannot open: Permission denied (os error 13)"
    );
    assert_eq!(
        says("odd", "77", "what now"),
        "not available here: what now"
    );
    let numberless = |name, text| says_with(name, "TAKT_DP_SYSTEM", 0, text);
    assert_eq!(
        numberless("wordy", "cannot open: it rains"),
        "cannot open: it rains"
    );
    assert_eq!(
        numberless("curt", "cannot open"),
        "cannot open: the plugin does not say why"
    );
}

#[test]
fn why_a_plugin_in_rust_fails_passes_the_table_with_a_number_and_without() {
    struct Fails<const NUMBER: i32>;
    impl<const NUMBER: i32> Export for Fails<NUMBER> {
        const NAME: &'static CStr = c"fails";
        const VERSION: &'static CStr = c"1";
        fn create(_options: &Options) -> Result<Box<dyn Datapath>, OpenError> {
            Err(OpenError::System {
                action: "cannot follow the tables".into(),
                source: match NUMBER {
                    0 => std::io::Error::other("the monitor has ended"),
                    number => std::io::Error::from_raw_os_error(number),
                },
            })
        }
    }
    fn told<E: Export>() -> (i32, String) {
        let create = super::table::<E>().create.expect("there");
        let (mut handle, mut failure) = (std::ptr::null_mut(), abi::Failure::default());
        // SAFETY: no options; places that outlive the call.
        let given = unsafe { create(std::ptr::null(), 0, &raw mut handle, &raw mut failure) };
        assert_eq!(given, -1);
        (failure.os_error, abi::read_text(&failure.text))
    }
    assert_eq!(
        told::<Fails<0>>(),
        (0, "cannot follow the tables: the monitor has ended".into())
    );
    assert_eq!(told::<Fails<13>>(), (13, "cannot follow the tables".into()));
}

#[test]
fn the_header_lays_out_what_is_here() {
    macro_rules! sizes {
        ($($c:literal = $rust:ty { $($field:ident),* }),* $(,)?) => {{
            let mut text = String::from("#include \"takt_datapath.h\"\n");
            $(
                text += &format!("_Static_assert(sizeof({}) == {}, \"\");\n", $c, size_of::<$rust>());
                $(text += &format!(
                    "_Static_assert(offsetof({}, {}) == {}, \"\");\n",
                    $c, stringify!($field), std::mem::offset_of!($rust, $field)
                );)*
            )*
            text
        }};
    }
    let text = sizes! {
        "takt_dp_address" = Address { family, port, scope, ip },
        "takt_dp_option" = Opt { key, value },
        "takt_dp_failure" = Failure { kind, os_error, limit, text },
        "takt_dp_capabilities" = Description { flags, detail },
        "takt_dp_request" = Request { lane, lanes, bind },
        "takt_dp_datagram" = Datagram { source, destination_port, payload, length },
        "takt_dp_counters" = Counters { tx_datagrams, tx_bytes, tx_errors, rx_datagrams, rx_bytes, rx_dropped, rx_invalid },
        "takt_datapath_plugin_table" = Table {
            abi, size, name, version, create, destroy, capabilities, open, close, local, connect, connect_link, disconnect, reaches,
            max_payload, reserve, payload, commit, keeps_launch_time, cancel, flush, receive, receive_costs_syscall, wait_fd, counters,
            longest_received, fault
        },
    };
    let numbers = [
        ("TAKT_DATAPATH_ABI", i64::from(ABI_VERSION)),
        ("TAKT_DP_NO_LAUNCH_TIME", LAUNCH_NONE),
        ("TAKT_DP_ADDRESS_FAMILY", FailureKind::AddressFamily as i64),
        ("TAKT_DP_PRIVILEGE", FailureKind::Privilege as i64),
        ("TAKT_DP_NO_ROUTE", FailureKind::NoRoute as i64),
        ("TAKT_DP_LINK", FailureKind::Link as i64),
        ("TAKT_DP_WOULD_BLOCK", NotReserved::WouldBlock as i64),
        ("TAKT_DP_UNRESOLVED", NotReserved::Unresolved as i64),
        ("TAKT_DP_UNKNOWN_PEER", NotReserved::UnknownPeer as i64),
        ("TAKT_DP_ACCELERATED", i64::from(abi::ACCELERATED)),
        ("TAKT_DP_NEEDS_POLLING", i64::from(abi::NEEDS_POLLING)),
        ("TAKT_DP_LAUNCH_TIME", i64::from(abi::LAUNCH_TIME)),
        ("TAKT_DP_ZERO_COPY", i64::from(abi::ZERO_COPY)),
    ];
    let numbers = numbers.map(|(name, value)| match value {
        i64::MIN => format!("_Static_assert({name} == INT64_MIN, \"\");\n"),
        value => format!("_Static_assert({name} == {value}, \"\");\n"),
    });
    let directory = Directory::new();
    build(&directory, "layout", &(text + &numbers.concat()));
}

#[test]
fn options_are_read_by_name() {
    let options = Options(
        [("peer", "a"), ("peer", "b"), ("count", "7")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .to_vec(),
    );
    assert_eq!(options.all("peer").collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(options.one("count"), Ok(Some("7")));
    assert_eq!(options.one("none"), Ok(None));
    assert!(
        options
            .one("peer")
            .is_err_and(|told| told.contains("`peer` is a list"))
    );
    assert_eq!(options.parse::<u32>("count", "a number"), Ok(Some(7)));
    let wrong = options.parse::<u32>("peer", "a number");
    assert!(wrong.is_err());
    assert!(options.only(&["peer", "count"]).is_ok());
    let unknown = options.only(&["peer"]).expect_err("unknown");
    assert_eq!(unknown, "`count` is no option: there are peer");
}
