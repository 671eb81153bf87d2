//! `takt clock setup`: what keeps the clocks of a leader and its followers, from the distribution's linuxptp.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use crate::failure::Failure;
use crate::output::{print, write_text};

const HELP: &str = "\
Writes the configuration of ptp4l and units of systemd that run it, and phc2sys where the interface has
a clock; starts nothing. One node of a network leads, the others follow it:
  DIRECTORY/takt-ptp4l.conf       [default: /etc/linuxptp]
  DIRECTORY/takt-ptp4l.service    [default: /etc/systemd/system]
  DIRECTORY/takt-phc2sys.service
The program says then which commands start them, and what belongs into takt.toml. Their clocks are kept
by nobody else: the units of a follower end chrony, ntpsec and systemd-timesyncd. The clock of a leader
is the operator's to keep, by chrony for example.

With hardware time stamps clocks agree to some tens of nanoseconds. With software time stamps, which
any interface has, to some microseconds or tens of them, worse on a loaded host; CLOCK_TAI is UTC then
on all nodes, which the configuration has to say.

Examples:
  takt clock setup --interface eth0 --role leader
  takt clock setup --interface eth0 --role follower
  takt clock setup --interface eth0 --role follower --profile gptp --output ptp";

/// Writes configuration and units of ptp4l and phc2sys for this node.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Setup {
    /// Interface on the network whose nodes are to have one time
    #[arg(long, value_name = "NAME", value_parser = interface)]
    interface: String,
    /// Whether the others follow this node, or it follows
    #[arg(long, value_enum, value_name = "ROLE")]
    role: Role,
    /// Use software time stamps though the interface has a clock
    #[arg(long)]
    software: bool,
    /// The PTP clock of the interface; found where the kernel names it
    #[arg(long, value_name = "DEVICE", conflicts_with = "software")]
    device: Option<PathBuf>,
    /// ieee1588: over UDP, through any switch; gptp: IEEE 802.1AS, all switches between take part
    #[arg(long, value_enum, value_name = "PROFILE", default_value = "ieee1588")]
    profile: Profile,
    /// The PTP domain
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=127))]
    domain: u8,
    /// Directory to write all files to; at their places in /etc if not given
    #[arg(long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Role {
    Leader,
    Follower,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Profile {
    Ieee1588,
    Gptp,
}

/// A name that is one, and that units and configurations take literally.
fn interface(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match (1..=15).contains(&text.len()) && !text.starts_with(['.', '-']) && text.chars().all(plain)
    {
        true => Ok(text.to_owned()),
        false => Err("write the name of an interface, such as eth0: see `ip link`".to_owned()),
    }
}

impl Setup {
    pub fn run(self) -> Result<(), Failure> {
        let class = Path::new("/sys/class/net").join(&self.interface);
        if !class.exists() {
            return Err(Failure::Other(format!(
                "there is no interface {}: see `ip link`",
                self.interface
            )));
        }
        let device = match (self.software, &self.device) {
            (true, _) => None,
            (false, Some(device)) if !device.exists() => {
                return Err(Failure::Other(format!(
                    "there is no {}: `ethtool -T {}` names the interface's clock; leave out --device, or use --software",
                    device.display(),
                    self.interface
                )));
            }
            (false, Some(device)) => Some(device.clone()),
            (false, None) => clock_of(&class),
        };
        let place = |usual: &str| self.output.clone().unwrap_or_else(|| usual.into());
        let (configurations, units) = (place("/etc/linuxptp"), place("/etc/systemd/system"));
        let configuration = configurations.join("takt-ptp4l.conf");
        let mut files = vec![
            (configuration.clone(), self.configuration(device.is_some())),
            (units.join("takt-ptp4l.service"), self.ptp4l(&configuration)),
        ];
        if device.is_some() {
            files.push((units.join("takt-phc2sys.service"), self.phc2sys()));
        }
        for (path, text) in &files {
            let directory = path.parent().unwrap_or(Path::new("/"));
            fs::create_dir_all(directory).map_err(|error| {
                Failure::Other(format!(
                    "cannot make {}: {error}: run as root, or write elsewhere with --output",
                    directory.display()
                ))
            })?;
            write_text(path, text)?;
        }
        print(&self.told(&files, device.as_deref()))
    }

    fn configuration(&self, hardware: bool) -> String {
        let stamps = if hardware { "hardware" } else { "software" };
        let role = match self.role {
            // Before every other that has not been told so.
            Role::Leader => "priority1 10\n",
            Role::Follower => "slaveOnly 1\n",
        };
        let profile = match self.profile {
            Profile::Ieee1588 => "network_transport UDPv4\ndelay_mechanism E2E\n",
            // IEEE 802.1AS-2020: its own transport, peer delays, eight synchronisations a second.
            Profile::Gptp => {
                "transportSpecific 0x1\nptp_dst_mac 01:80:C2:00:00:0E\np2p_dst_mac 01:80:C2:00:00:0E\n\
                 network_transport L2\ndelay_mechanism P2P\nlogSyncInterval -3\nfollow_up_info 1\nassume_two_step 1\n\
                 path_trace_enabled 1\nneighborPropDelayThresh 800\nmin_neighbor_prop_delay -20000000\n"
            }
        };
        // Software stamps tell nothing of a path below some microseconds: no threshold for it.
        let profile = match hardware {
            true => profile.to_owned(),
            false => profile.replace(
                "neighborPropDelayThresh 800\n",
                "neighborPropDelayThresh 10000000\n",
            ),
        };
        format!(
            "# By `takt clock setup`.\n[global]\ntime_stamping {stamps}\ndomainNumber {}\n{role}{profile}\
             first_step_threshold 0.00002\nuds_address /var/run/ptp4l\n",
            self.domain
        )
    }

    /// Nobody else keeps the clock of a follower.
    fn others(&self) -> &'static str {
        match self.role {
            Role::Leader => "",
            Role::Follower => "Conflicts=chrony.service ntpsec.service systemd-timesyncd.service\n",
        }
    }

    fn ptp4l(&self, configuration: &Path) -> String {
        format!(
            "# By `takt clock setup`.\n[Unit]\nDescription=PTP on {0}, for takt\nDocumentation=man:ptp4l(8)\n\
             After=network.target\nBefore=taktd.service\n{1}\n[Service]\nExecStart=/usr/sbin/ptp4l -f {2} -i {0}\n\
             Restart=on-failure\nRestartSec=1\n\n[Install]\nWantedBy=multi-user.target\n",
            self.interface,
            self.others(),
            configuration.display(),
        )
    }

    fn phc2sys(&self) -> String {
        let (what, clocks) = match self.role {
            Role::Leader => (
                "The interface's clock follows the kernel's",
                format!("-c {} -s CLOCK_REALTIME", self.interface),
            ),
            Role::Follower => (
                "The kernel's clock follows the interface's",
                format!("-s {}", self.interface),
            ),
        };
        // ptp4l hears nobody who speaks another profile, its own helper included.
        let profile = match self.profile {
            Profile::Ieee1588 => "",
            Profile::Gptp => " --transportSpecific 1",
        };
        format!(
            "# By `takt clock setup`.\n[Unit]\nDescription={what}, for takt\nDocumentation=man:phc2sys(8)\n\
             Requires=takt-ptp4l.service\nAfter=takt-ptp4l.service\nBefore=taktd.service\n{}\n[Service]\n\
             ExecStart=/usr/sbin/phc2sys -w {clocks} -n {}{profile}\nRestart=on-failure\nRestartSec=1\n\n[Install]\n\
             WantedBy=multi-user.target\n",
            self.others(),
            self.domain,
        )
    }

    fn told(&self, files: &[(PathBuf, String)], device: Option<&Path>) -> String {
        let written = files
            .iter()
            .map(|(path, _)| format!("wrote {}\n", path.display()));
        let mut text: String = written.collect();
        let units = match device {
            Some(_) => "takt-ptp4l takt-phc2sys",
            None => "takt-ptp4l",
        };
        if !Path::new("/usr/sbin/ptp4l").exists() {
            text += "\nptp4l is not installed here: apt-get install linuxptp\n";
        }
        text += &format!(
            "\nTo start now and at each start:\n  systemctl daemon-reload\n  systemctl enable --now {units}\n\
             \nIn takt.toml:\n  [clock]\n  ptp4l = \"/var/run/ptp4l\"\n"
        );
        if self.domain != 0 {
            text += &format!("  ptp_domain = {}\n", self.domain);
        }
        text += &match device {
            Some(device) => format!("  device = \"{}\"\n", device.display()),
            None => "  timescale = \"utc\"\n".to_owned(),
        };
        text += match (self.role, device) {
            (Role::Leader, Some(_)) => {
                "\nThe kernel has to know TAI - UTC: keep its clock by chrony with `leapsectz right/UTC`.\n"
            }
            (_, None) => {
                "\nTime stamps are by software: expect microseconds, and have all nodes use `timescale = \"utc\"`.\n"
            }
            (Role::Follower, Some(_)) => "",
        };
        text + "\nThen `takt clock` says how good the clock is.\n"
    }
}

/// The PTP clock of an interface, where the kernel names one.
fn clock_of(class: &Path) -> Option<PathBuf> {
    let clocks = fs::read_dir(class.join("device/ptp")).ok()?;
    let name = clocks.flatten().next()?.file_name();
    Some(Path::new("/dev").join(name))
}
