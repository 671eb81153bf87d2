//! What was installed over a restart: it is written down, and in force again from the start.
//!
//! Without schedules all gates would be open after a crash, without their listeners pods would have no runtime. Each
//! file is a message of the admin API (`InstalledSchedules`, `KeptListeners`); it is replaced as a whole, so that
//! whatever happens there is the old one or the new one.

use std::io::Write;
use std::path::{Path, PathBuf};

use prost::Message;
use takt_runtime::config::{KeptSchedule, LinkSchedule};
use takt_time::TaiTime;

use crate::admin::{proto, schedule};

/// The schedules' file in the state directory.
const FILE: &str = "schedules";
/// The listeners' file there.
const LISTENERS: &str = "listeners";
/// A longer file is none of ours.
const LONGEST: u64 = 16 << 20;

/// Why the schedules of before cannot be restored. A node that started without them would have open gates.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The file cannot be read.
    #[error(
        "cannot read the schedules that were installed, {path}: {source}; see to the file, or remove it to start with open gates"
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// What it says is no schedule.
    #[error(
        "the schedules that were installed, {path}, are damaged: {problem}; remove the file to start with open gates"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// The schedules of before. They go before those of the configuration, of which they take out what will not run.
///
/// # Errors
/// [`KeptError`]; nothing is changed.
pub fn restore(
    directory: &Path,
    now: TaiTime,
    configured: &mut Vec<LinkSchedule>,
) -> Result<Vec<KeptSchedule>, KeptError> {
    let path = directory.join(FILE);
    let bytes = match read(&path) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Ok(Vec::new()),
        Err(source) => return Err(KeptError::Read { path, source }),
    };
    let mut kept =
        read_schedules(&bytes).map_err(|problem| KeptError::Damaged { path, problem })?;
    let begun = |kept: &KeptSchedule| kept.running || kept.asked.schedule.base_time <= now;
    configured.retain(|configured| {
        let of_datapath = |kept: &&KeptSchedule| kept.asked.datapath == configured.datapath;
        // Until one begins that is still to come, the configured one runs.
        let Some(instead) = kept.iter().filter(of_datapath).rfind(|kept| begun(kept)) else {
            return true;
        };
        if instead.asked != *configured {
            let datapath = &configured.datapath;
            tracing::warn!(
                datapath,
                "the configured schedule is not in force: another was installed by command, and goes before it until it is removed (`takt schedule remove --datapath {datapath}`)"
            );
        }
        false
    });
    // One that another has replaced since is history.
    for at in (0..kept.len()).rev() {
        let replaced =
            |later: &KeptSchedule| later.asked.datapath == kept[at].asked.datapath && begun(later);
        if kept[at + 1..].iter().any(replaced) {
            kept.remove(at);
        }
    }
    Ok(kept)
}

/// The file's content, if it is there.
fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let read = std::fs::metadata(path).and_then(|about| match about.len() {
        ..=LONGEST => std::fs::read(path),
        _ => Err(std::io::ErrorKind::FileTooLarge.into()),
    });
    match read {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

fn read_schedules(bytes: &[u8]) -> Result<Vec<KeptSchedule>, String> {
    let message = proto::InstalledSchedules::decode(bytes).map_err(|error| error.to_string())?;
    let schedules = message.schedules.into_iter();
    let asked: Vec<LinkSchedule> = schedules
        .map(schedule::from_request)
        .collect::<Result<_, _>>()?;
    let kept = asked.iter().enumerate().map(|(at, schedule)| {
        // Of two the first one runs. A node of before has not said so.
        let another = |later: &LinkSchedule| later.datapath == schedule.datapath;
        let told = message.running.iter().any(|place| *place as usize == at);
        KeptSchedule {
            asked: schedule.clone(),
            running: told || asked[at + 1..].iter().any(another),
        }
    });
    Ok(kept.collect())
}

/// Writes down which schedules there are.
///
/// # Errors
/// The kernel's, with the directory named.
pub fn write(directory: &Path, schedules: &[KeptSchedule]) -> std::io::Result<()> {
    let places = (0..).zip(schedules).filter(|(_, kept)| kept.running);
    let message = proto::InstalledSchedules {
        schedules: schedules.iter().map(|kept| (&kept.asked).into()).collect(),
        running: places.map(|(place, _)| place).collect(),
    };
    replace(directory, FILE, &message.encode_to_vec(), Lasts::OnDisk)
}

/// The listeners of before. Those that cannot be read are told in the log: a node serves all others without them.
pub fn listeners(directory: &Path) -> Vec<proto::Listener> {
    let path = directory.join(LISTENERS);
    let decoded = read(&path)
        .map_err(|error| error.to_string())
        .and_then(|bytes| {
            let bytes = bytes.unwrap_or_default();
            proto::KeptListeners::decode(bytes.as_slice()).map_err(|error| error.to_string())
        });
    match decoded {
        Ok(kept) => kept.listeners,
        Err(problem) => {
            tracing::error!(
                "cannot read the listeners that were kept, {}: {problem}; set them again",
                path.display()
            );
            Vec::new()
        }
    }
}

/// Writes down which listeners there are, instead of those before. Where the sockets of all of them are in memory, as those of
/// pods below `/run`, no power failure leaves any that could be opened again, and the disk is not waited for: 1.3 of the 1.8
/// milliseconds that setting one takes.
///
/// # Errors
/// The kernel's, with the directory named.
pub fn write_listeners(
    directory: &Path,
    before: &[proto::Listener],
    listeners: &[proto::Listener],
) -> std::io::Result<()> {
    let mut all = before.iter().chain(listeners);
    let lasts = match all.all(|listener| is_in_memory(Path::new(&listener.path))) {
        true => Lasts::UntilPowerFails,
        false => Lasts::OnDisk,
    };
    let message = proto::KeptListeners {
        listeners: listeners.to_vec(),
    };
    replace(directory, LISTENERS, &message.encode_to_vec(), lasts)
}

/// Whether a socket is gone, with its directory, when power fails.
fn is_in_memory(socket: &Path) -> bool {
    /// `statfs(2)`: tmpfs and ramfs.
    const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];
    let directory = socket.parent().unwrap_or(Path::new("/"));
    let found = rustix::fs::statfs(directory);
    found.is_ok_and(|found| IN_MEMORY.contains(&(found.f_type as u64)))
}

/// What does not undo that a file was replaced, besides a crash of this process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lasts {
    OnDisk,
    UntilPowerFails,
}

/// Replaces a file as a whole.
fn replace(directory: &Path, name: &str, bytes: &[u8], lasts: Lasts) -> std::io::Result<()> {
    let on_disk = |file: &std::fs::File| match lasts {
        Lasts::OnDisk => file.sync_all(),
        Lasts::UntilPowerFails => Ok(()),
    };
    let told = |error: std::io::Error| {
        let text = format!(
            "cannot write into {}: {error}; make room there, or make it writable, and do it again",
            directory.display()
        );
        std::io::Error::new(error.kind(), text)
    };
    std::fs::create_dir_all(directory).map_err(told)?;
    let (new, path) = (directory.join(format!("{name}.new")), directory.join(name));
    let written = std::fs::File::create(&new).and_then(|mut file| {
        file.write_all(bytes)?;
        on_disk(&file)
    });
    if written.is_err() {
        // Half of it is of no use to anybody.
        let _ = std::fs::remove_file(&new);
    }
    written
        .and_then(|()| std::fs::rename(&new, &path))
        .and_then(|()| on_disk(&std::fs::File::open(directory)?))
        .map_err(told)
}

#[cfg(test)]
mod tests {
    use takt_runtime::config::OtherTraffic;
    use takt_schedule::{ClassTable, GateEntry, GateMask, Schedule, Selection};
    use takt_testing::Directory;

    use super::*;

    fn schedule(datapath: &str, base_ns: i64) -> LinkSchedule {
        let schedule = Schedule {
            base_time: TaiTime::from_nanos(base_ns),
            cycle_time_ns: 1_000_000,
            entries: vec![GateEntry::new(GateMask::from_bits(0x81), 1_000_000)],
            require_sync_ns: Some(5),
            selection: {
                let mut selection = [Selection::FirstCome; 8];
                selection[3] = Selection::CreditBased {
                    idle_slope_bps: 7,
                    high_credit_bits: 8,
                };
                selection
            },
            ..Schedule::default()
        };
        LinkSchedule {
            vlan: true,
            other_traffic: OtherTraffic::Taprio,
            classes: ClassTable::new([0, 0, 1, 1, 2, 2, 7, 7]).expect("classes"),
            ..LinkSchedule::new(datapath, schedule, 1_000_000_000)
        }
    }

    fn kept(asked: &LinkSchedule, running: bool) -> KeptSchedule {
        KeptSchedule {
            asked: asked.clone(),
            running,
        }
    }

    /// What is left of the configured ones, and what was kept.
    fn restored(
        directory: &Path,
        now_ns: i64,
        configured: &[LinkSchedule],
    ) -> (Vec<LinkSchedule>, Vec<KeptSchedule>) {
        let mut configured = configured.to_vec();
        let now = TaiTime::from_nanos(now_ns);
        let kept = restore(directory, now, &mut configured).expect("restored");
        (configured, kept)
    }

    #[test]
    fn what_was_installed_is_restored_and_goes_before_the_configuration() {
        let directory = Directory::new();
        let place = directory.join("state");
        let configured = [schedule("udp", 1), schedule("xdp", 2)];
        let all = (configured.to_vec(), Vec::new());
        assert_eq!(restored(&place, 0, &configured), all);
        let running = kept(&schedule("udp", 10), true);
        let pending = kept(&schedule("udp", 1000), false);
        write(&place, &[running.clone(), pending.clone()]).expect("written");
        // Also by a clock that has fallen behind.
        for now in [500, 5] {
            let (left, kept) = restored(&place, now, &configured);
            assert_eq!(left, configured[1..]);
            assert_eq!(kept, [running.clone(), pending.clone()]);
        }
        // What has been replaced meanwhile is not begun again.
        assert_eq!(restored(&place, 1000, &[]).1, [pending]);
        write(&place, &[]).expect("written");
        assert_eq!(restored(&place, 500, &configured), all);
    }

    #[test]
    fn a_configured_schedule_runs_until_the_one_begins_that_was_installed_later() {
        let directory = Directory::new();
        let configured = [schedule("udp", 1)];
        let pending = kept(&schedule("udp", 1000), false);
        write(directory.path(), std::slice::from_ref(&pending)).expect("written");
        let before = restored(directory.path(), 500, &configured);
        assert_eq!(before, (configured.to_vec(), vec![pending.clone()]));
        let after = restored(directory.path(), 1000, &configured);
        assert_eq!(after, (Vec::new(), vec![pending]));
    }

    #[test]
    fn of_two_schedules_that_an_earlier_version_kept_the_first_one_runs() {
        let directory = Directory::new();
        let [first, second] = [10, 1000].map(|base| schedule("udp", base));
        let message = proto::InstalledSchedules {
            schedules: vec![(&first).into(), (&second).into()],
            running: Vec::new(),
        };
        let bytes = message.encode_to_vec();
        replace(directory.path(), FILE, &bytes, Lasts::OnDisk).expect("written");
        let both = vec![kept(&first, true), kept(&second, false)];
        assert_eq!(restored(directory.path(), 5, &[]), (Vec::new(), both));
    }

    #[test]
    fn a_damaged_file_keeps_the_node_from_starting_with_open_gates() {
        let directory = Directory::new();
        write(directory.path(), &[kept(&schedule("udp", 1), true)]).expect("written");
        let path = directory.join(FILE);
        let good = std::fs::read(&path).expect("a file");
        let refused = |bytes: &[u8]| {
            std::fs::write(&path, bytes).expect("written");
            restore(directory.path(), TaiTime::from_nanos(0), &mut Vec::new())
        };
        for bytes in [&good[..good.len() - 1], b"\x0a\x00", b"no schedule at all"] {
            let text = refused(bytes).expect_err("damaged").to_string();
            assert!(text.contains("remove the file"), "{text}");
        }
        refused(&good).expect("good");
    }

    #[test]
    fn damaged_listeners_keep_no_node_from_starting() {
        let directory = Directory::new();
        assert_eq!(listeners(directory.path()), []);
        let press = proto::Listener {
            path: "/run/takt/press.sock".into(),
            ..proto::Listener::default()
        };
        write_listeners(directory.path(), &[], std::slice::from_ref(&press)).expect("written");
        assert_eq!(listeners(directory.path()), [press]);
        std::fs::write(directory.join(LISTENERS), b"no listener at all").expect("written");
        assert_eq!(listeners(directory.path()), []);
    }
    #[test]
    fn sockets_in_memory_are_gone_with_the_power() {
        // Always a tmpfs, and never one.
        assert!(is_in_memory(Path::new("/dev/shm/press.sock")));
        assert!(!is_in_memory(Path::new("/proc/press.sock")));
        assert!(!is_in_memory(Path::new("/nowhere/press.sock")));
    }
}
