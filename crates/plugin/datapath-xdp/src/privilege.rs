//! Which capabilities the datapath needs (`capabilities(7)`), and how to grant those that are
//! missing.

use takt_datapath::OpenError;

const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_BPF: u32 = 39;

/// Checks the calling thread's effective capabilities.
pub(crate) fn check() -> Result<(), OpenError> {
    let effective = effective().map_err(|source| OpenError::System {
        action: "cannot read the capabilities in /proc/thread-self/status".into(),
        source,
    })?;
    let missing = missing(effective);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(OpenError::Privilege(explain(&missing)))
    }
}

/// What to say when the kernel refuses although the capabilities are there, as in a user namespace.
pub(crate) fn refused(action: &str) -> OpenError {
    OpenError::Privilege(format!(
        "the kernel refuses to {action}: BPF needs CAP_NET_ADMIN and CAP_BPF in the initial user \
         namespace (not in a rootless container) and a kernel that is not locked down"
    ))
}

fn effective() -> std::io::Result<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status")?;
    status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok())
        .ok_or_else(|| std::io::Error::other("no line CapEff"))
}

fn missing(effective: u64) -> Vec<&'static str> {
    let has = |capability: u32| effective & (1 << capability) != 0;
    let mut missing = Vec::new();
    if !has(CAP_NET_ADMIN) {
        missing.push("CAP_NET_ADMIN");
    }
    if !has(CAP_NET_RAW) {
        missing.push("CAP_NET_RAW");
    }
    if !has(CAP_BPF) && !has(CAP_SYS_ADMIN) {
        missing.push("CAP_BPF");
    }
    missing
}

fn explain(missing: &[&str]) -> String {
    format!(
        "AF_XDP needs CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and {} is missing: run as root, \
         `setcap cap_net_admin,cap_net_raw,cap_bpf,cap_ipc_lock+ep` on the executable, \
         AmbientCapabilities= in its systemd unit, or securityContext.capabilities.add in its pod",
        missing.join(" and ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_capabilities_suffice() {
        assert!(missing(1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW | 1 << CAP_BPF).is_empty());
    }

    #[test]
    fn sys_admin_stands_for_bpf_as_in_kernels_before_it_was_split_off() {
        assert!(missing(1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW | 1 << CAP_SYS_ADMIN).is_empty());
    }

    #[test]
    fn the_message_names_what_is_missing_and_how_to_grant_it() {
        let message = explain(&missing(1 << CAP_NET_ADMIN));
        assert!(
            message.contains("CAP_NET_RAW and CAP_BPF is missing"),
            "{message}"
        );
        assert!(message.contains("setcap"), "{message}");
    }
}
