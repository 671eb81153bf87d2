//! What this host could do, found out without a node: what each technology needs is looked at or tried, and nothing of the
//! host is changed. Only [`attach`] does more.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;

use takt_datapath::plugin::{LoadError, Options, Plugin, file_name};
use takt_datapath::stack::Tables;
use takt_datapath::{Datapath, OpenError, PortRequest};
use takt_datapath_udp::UdpDatapath;
use takt_datapath_xdp::{XdpConfig, XdpDatapath};

/// Plugins of this project, with what their libraries are called.
const PLUGINS: [(&str, &str); 2] = [("dpdk", "DPDK"), ("fabric", "libfabric")];
/// Interfaces that are looked at: a node of a cluster may have very many.
const MOST_INTERFACES: usize = 64;

/// A technology, on one interface where it is bound to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// Where; none where it is bound to no interface.
    pub interface: Option<String>,
    /// What there is, or why there is nothing.
    pub state: Result<String, Absence>,
}

/// Why a technology is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// The reason.
    pub reason: String,
    /// What to do; empty where the reason says it.
    pub remedy: String,
}

impl Absence {
    /// Out of a text that says what to do behind its first colon, as those of datapaths do.
    pub fn read(text: &str) -> Self {
        let text = ["not available here: ", "missing privilege: "]
            .iter()
            .find_map(|prefix| text.strip_prefix(prefix))
            .unwrap_or(text);
        let (reason, remedy) = text.split_once(": ").unwrap_or((text, ""));
        Self {
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }
}

impl From<OpenError> for Absence {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Privilege(text) | OpenError::Unavailable(text) => Self::read(&text),
            other => Self::new(other.to_string(), ""),
        }
    }
}

/// Looks at every technology: those built in, those of this project, and whatever else is in the directory of plugins. In
/// the network namespace of the calling thread.
pub fn all(plugins: &Path) -> Vec<Found> {
    let mut found = vec![udp()];
    found.extend(xdp());
    let own = PLUGINS.map(|(name, _)| name.to_owned());
    let others = names(plugins).into_iter().filter(|n| !own.contains(n));
    found.extend(own.iter().cloned().chain(others).map(|name| Found {
        state: plugin(plugins, &name),
        interface: None,
        name,
    }));
    found
}

/// Opens AF_XDP on an interface as a node does, and closes it again. Attaches a program for that moment: some cards lose
/// their link while they change over.
pub fn attach(interface: &str) -> Found {
    let open = || {
        let datapath = XdpDatapath::probe(XdpConfig::new(interface))?;
        datapath.open(&any_port())?;
        Ok::<_, OpenError>(datapath.capabilities().detail)
    };
    Found {
        name: XdpDatapath::KIND.0.into(),
        interface: Some(interface.into()),
        state: open().map_err(Absence::from),
    }
}

fn any_port() -> PortRequest {
    PortRequest {
        lane: 0,
        lanes: 1,
        bind: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
    }
}

fn udp() -> Found {
    let datapath = UdpDatapath::default();
    let opened = datapath.open(&any_port());
    Found {
        name: UdpDatapath::KIND.0.into(),
        interface: None,
        state: opened
            .map(|_| datapath.capabilities().detail)
            .map_err(Absence::from),
    }
}

/// AF_XDP on every Ethernet interface.
fn xdp() -> Vec<Found> {
    let found = |interface, state| Found {
        name: XdpDatapath::KIND.0.into(),
        interface,
        state,
    };
    let devices = match Tables::open().and_then(|mut tables| tables.devices()) {
        Ok(devices) => devices,
        Err(error) => {
            let reason = format!("cannot list the interfaces: {error}");
            return vec![found(None, Err(Absence::new(reason, "")))];
        }
    };
    let mut names: Vec<String> = devices
        .into_iter()
        .filter(|device| device.mac.is_some())
        .map(|device| device.name)
        .collect();
    names.sort_unstable();
    if names.is_empty() {
        let why = Absence::new(
            "there is no Ethernet interface in this network namespace",
            "see `ip link`",
        );
        return vec![found(None, Err(why))];
    }
    let looked_at = names.into_iter().take(MOST_INTERFACES);
    looked_at
        .map(|name| {
            let state = match XdpDatapath::examine(&name) {
                Ok(there) => Ok(format!(
                    "driver {}, {} receive queue(s), MTU {}",
                    there.driver, there.queues, there.mtu
                )),
                Err(error) => Err(error.into()),
            };
            found(Some(name), state)
        })
        .collect()
}

/// Names of the plugins in a directory; none where it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let file = entry.file_name();
            let name = file.to_str()?.strip_prefix("libtakt_datapath_")?;
            Some(name.strip_suffix(".so")?.to_owned())
        })
        .collect();
    names.sort_unstable();
    names
}

/// Loads a plugin, and has it try what it can without being told of a device.
fn plugin(directory: &Path, name: &str) -> Result<String, Absence> {
    let plugin = Plugin::load(directory, name).map_err(|error| not_loaded(name, &error))?;
    let version = format!("plugin {}", plugin.version());
    let option = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let options = match name {
        // DPDK is started with its device that is none, and as little memory as it runs with.
        "dpdk" => Options(
            [
                ("device", "net_null0"),
                ("address", "192.0.2.1/24"),
                ("memory", "64"),
            ]
            .map(option)
            .into(),
        ),
        "fabric" => Options::default(),
        // What another one needs to be told is its own.
        _ => return Ok(format!("{version}, loads")),
    };
    let datapath = plugin.create(&options).map_err(Absence::from)?;
    let detail = datapath.capabilities().detail;
    Ok(match name {
        "dpdk" => format!("{version}, starts: {detail}; {}", cards()),
        _ => format!("{version}, {detail}"),
    })
}

fn not_loaded(name: &str, error: &LoadError) -> Absence {
    let library = PLUGINS.iter().find(|(plugin, _)| *plugin == name);
    match (error, library) {
        (LoadError::Missing(path), Some((_, library))) => Absence::new(
            format!("there is no plugin {}", path.display()),
            format!(
                "`make datapaths` builds {}, which needs {library}; its directory is `node.plugins`, or --plugins here",
                file_name(name)
            ),
        ),
        (LoadError::Object { .. }, library) => {
            let of = library.map_or("its libraries", |(_, library)| library);
            Absence::new(
                error.to_string(),
                format!("install {of}, in the version that the plugin was built with"),
            )
        }
        _ => Absence::read(&error.to_string()),
    }
}

/// Network cards that are given to user space.
fn cards() -> String {
    let drivers = ["vfio-pci", "uio_pci_generic", "igb_uio"];
    let is_network = |device: &Path| {
        // The class of network controllers (PCI code and ID assignment, section 1.3).
        fs::read_to_string(device.join("class")).is_ok_and(|class| class.starts_with("0x02"))
    };
    let mut cards: Vec<String> = drivers
        .iter()
        .filter_map(|driver| fs::read_dir(format!("/sys/bus/pci/drivers/{driver}")).ok())
        .flat_map(|entries| entries.flatten())
        .filter(|entry| is_network(&entry.path()))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    cards.sort_unstable();
    match cards.is_empty() {
        true => "no card is bound to vfio-pci (virtual devices need none)".into(),
        false => format!("cards for it: {}", cards.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use takt_testing::Directory;

    #[test]
    fn a_reason_and_what_to_do_are_told_apart() {
        let text = "not available here: eth0 is down: `ip link set dev eth0 up`";
        let absence = Absence::read(text);
        assert_eq!(absence.reason, "eth0 is down");
        assert_eq!(absence.remedy, "`ip link set dev eth0 up`");
        assert_eq!(Absence::read("gone").remedy, "");
    }

    #[test]
    fn kernel_udp_opens_and_plugins_that_are_none_are_told_so() {
        let directory = Directory::new();
        let path = directory.join("libtakt_datapath_other.so");
        std::fs::write(path, "no shared object").expect("written");
        let found = all(directory.path());
        let of = |name: &str| found.iter().find(|found| found.name == name).expect(name);
        assert!(of("udp").state.is_ok(), "{found:?}");
        assert!(found.iter().any(|found| found.name == "xdp"), "{found:?}");
        let absent = |name: &str| of(name).state.clone().expect_err("not there");
        assert!(absent("dpdk").remedy.contains("make datapaths"));
        assert!(absent("fabric").reason.contains("there is no plugin"));
        let other = absent("other");
        assert!(other.reason.contains("cannot be loaded"), "{other:?}");
        assert!(other.remedy.contains("install its libraries"), "{other:?}");
    }
}
