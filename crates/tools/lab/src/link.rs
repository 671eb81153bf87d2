//! Waiting until a cable carries frames.
//!
//! A veth pair whose ends have just been brought up is not in use yet: the kernel's link watch sees
//! it first, which may take up to a second, and a bridge's port forwards only after that.

use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::LabError;
use crate::iproute::ip;

/// How long a link may take to become operational: several rounds of the link watch.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

/// What `ip -json -details link show` says of a link, as far as it matters here.
#[derive(Deserialize)]
struct Description {
    flags: Vec<String>,
    operstate: String,
    #[serde(default)]
    linkinfo: LinkInfo,
}

#[derive(Default, Deserialize)]
struct LinkInfo {
    info_slave_kind: Option<String>,
    #[serde(default)]
    info_slave_data: SlaveData,
}

#[derive(Default, Deserialize)]
struct SlaveData {
    state: Option<String>,
}

impl Description {
    fn of(namespace: &str, interface: &str) -> Result<Self, LabError> {
        let purpose = format!("look at {interface} of {namespace}");
        let text = ip(
            &purpose,
            &[
                "-n", namespace, "-json", "-details", "link", "show", "dev", interface,
            ],
        )?;
        let parsed: Result<[Self; 1], _> = serde_json::from_str(&text);
        match parsed {
            Ok([description]) => Ok(description),
            Err(source) => Err(LabError::Description {
                interface: interface.to_owned(),
                namespace: namespace.to_owned(),
                source,
            }),
        }
    }

    fn is_plugged_in(&self) -> bool {
        self.flags.iter().any(|flag| flag == "UP")
    }

    fn is_operational(&self) -> bool {
        let port = self.linkinfo.info_slave_kind.as_deref() == Some("bridge");
        let forwarding = self.linkinfo.info_slave_data.state.as_deref() == Some("forwarding");
        self.operstate == "UP" && (!port || forwarding)
    }
}

/// Returns when frames pass from `near` to `far` (each a namespace and an interface), or at once when
/// one end is pulled out.
pub(crate) fn wait_until_operational(
    near: (&str, &str),
    far: (&str, &str),
) -> Result<(), LabError> {
    let start = Instant::now();
    loop {
        let ends = [
            Description::of(near.0, near.1)?,
            Description::of(far.0, far.1)?,
        ];
        if !ends.iter().all(Description::is_plugged_in) {
            return Ok(());
        }
        let Some(waiting) = ends.iter().position(|end| !end.is_operational()) else {
            return Ok(());
        };
        let waited = start.elapsed();
        if waited > PATIENCE {
            let (namespace, interface) = [near, far][waiting];
            let end = &ends[waiting];
            let state = end
                .linkinfo
                .info_slave_data
                .state
                .as_deref()
                .unwrap_or(&end.operstate);
            return Err(LabError::Link {
                interface: interface.to_owned(),
                namespace: namespace.to_owned(),
                state: state.to_owned(),
                waited_ms: waited.as_millis(),
            });
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Description {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_bridge_port_is_operational_once_it_forwards() {
        let port = |state: &str| {
            parse(&format!(
                r#"{{"flags":["UP"],"operstate":"UP","linkinfo":{{"info_kind":"veth",
                "info_slave_kind":"bridge","info_slave_data":{{"state":"{state}","priority":32}}}}}}"#
            ))
        };
        assert!(!port("disabled").is_operational());
        assert!(port("forwarding").is_operational());
    }

    #[test]
    fn a_link_without_carrier_is_not_operational() {
        let link = |state: &str| {
            parse(&format!(
                r#"{{"flags":["NO-CARRIER","UP"],"operstate":"{state}"}}"#
            ))
        };
        assert!(!link("LOWERLAYERDOWN").is_operational());
        assert!(link("UP").is_operational());
        assert!(link("UP").is_plugged_in());
    }
}
