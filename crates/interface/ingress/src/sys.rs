//! Calls of the kernel that the loader library does not make: attaching a program for longer than a process, asking
//! for the driver of a device, and for the other end of a veth.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Of `enum bpf_cmd`.
const BPF_PROG_ATTACH: libc::c_long = 8;
const BPF_PROG_DETACH: libc::c_long = 9;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_PROG_BIND_MAP: libc::c_long = 35;
/// Where at a device: `enum bpf_attach_type`, Linux 6.6.
#[derive(Clone, Copy)]
#[repr(u32)]
pub(crate) enum Place {
    /// `BPF_TCX_INGRESS`.
    Ingress = 46,
    /// `BPF_TCX_EGRESS`.
    Egress = 47,
}
/// In front of all others.
const BPF_F_BEFORE: u32 = 1 << 3;

/// The part of `union bpf_attr` that both commands read.
#[repr(C)]
struct Attach {
    ifindex: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
    relative: u32,
    revision: u64,
}

/// Attaches a program at a device in front of all others. It stays when this process ends.
pub(crate) fn attach(ifindex: u32, place: Place, program: BorrowedFd<'_>) -> io::Result<()> {
    change(BPF_PROG_ATTACH, ifindex, place, program, BPF_F_BEFORE)
}

/// Takes such a program away.
pub(crate) fn detach(ifindex: u32, place: Place, program: BorrowedFd<'_>) -> io::Result<()> {
    change(BPF_PROG_DETACH, ifindex, place, program, 0)
}

/// Keeps a map as long as the program, which others find it by although it does not use it.
pub(crate) fn bind(program: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    let flags = 0;
    let mut attributes: [u32; 3] = [program.as_raw_fd() as u32, map.as_raw_fd() as u32, flags];
    bpf(BPF_PROG_BIND_MAP, &mut attributes)
}

/// Programs at a place that are told.
const MOST_PROGRAMS: usize = 256;

/// The part of `union bpf_attr` that asks for the programs at a place.
#[repr(C)]
struct Query {
    ifindex: u32,
    attach_type: u32,
    flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    padding: u32,
    program_flags: u64,
    links: u64,
    link_flags: u64,
    revision: u64,
}

/// The numbers of the programs at a device. What they are takes more privilege.
pub(crate) fn programs(ifindex: u32, place: Place) -> io::Result<Vec<u32>> {
    let mut numbers = vec![0u32; MOST_PROGRAMS];
    let mut query = Query {
        ifindex,
        attach_type: place as u32,
        flags: 0,
        attach_flags: 0,
        programs: numbers.as_mut_ptr() as u64,
        count: MOST_PROGRAMS as u32,
        padding: 0,
        program_flags: 0,
        links: 0,
        link_flags: 0,
        revision: 0,
    };
    bpf(BPF_PROG_QUERY, &mut query)?;
    numbers.truncate(query.count as usize);
    Ok(numbers)
}

fn change(
    command: libc::c_long,
    ifindex: u32,
    place: Place,
    program: BorrowedFd<'_>,
    flags: u32,
) -> io::Result<()> {
    let mut attributes = Attach {
        ifindex,
        program: program.as_raw_fd() as u32,
        attach_type: place as u32,
        flags,
        replaced: 0,
        relative: 0,
        revision: 0,
    };
    bpf(command, &mut attributes)
}

/// bpf(2) with the part of `union bpf_attr` that a command reads.
fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<()> {
    // SAFETY: the attributes are plain words, which may be read and written for the length told, as what they point to; the kernel takes
    // what is missing of the union as zeros.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The number of a device of this network namespace.
pub(crate) fn index(device: &str) -> io::Result<u32> {
    let name = CString::new(device)?;
    // SAFETY: a string that ends, and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// The name of a device of this network namespace.
pub(crate) fn name(index: u32) -> io::Result<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: there is room for a name and its end.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel's name, which ends.
    Ok(unsafe { CStr::from_ptr(name.as_ptr()) }
        .to_string_lossy()
        .into_owned())
}

/// Whether no device has this index any more. One that cannot be asked for now, as without a free descriptor, may be there.
pub(crate) fn is_gone(index: u32) -> bool {
    name(index).is_err_and(|error| says_gone(&error))
}

fn says_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV))
}

/// The names of the devices of this network namespace.
pub(crate) fn names() -> io::Result<Vec<String>> {
    // SAFETY: a plain call.
    let all = unsafe { libc::if_nameindex() };
    if all.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    // SAFETY: an entry without a name is the last one; what is before it has a name that ends, all of it until it is freed.
    unsafe {
        let mut at = all;
        while !(*at).if_name.is_null() {
            let name = CStr::from_ptr((*at).if_name);
            names.push(name.to_string_lossy().into_owned());
            at = at.add(1);
        }
        libc::if_freenameindex(all);
    }
    Ok(names)
}

/// `struct ethtool_drvinfo` of `linux/ethtool.h`, of which the driver is of interest.
#[repr(C)]
struct DriverInfo {
    command: u32,
    driver: [u8; 32],
    rest: [u8; 160],
}
const ETHTOOL_GDRVINFO: u32 = 3;
const ETHTOOL_GTXCSUM: u32 = 0x16;
const ETHTOOL_STXCSUM: u32 = 0x17;
const SIOCETHTOOL: libc::c_ulong = 0x8946;

/// A request about a device, for ioctl(2), for nothing yet.
fn request(device: &str) -> io::Result<libc::ifreq> {
    // SAFETY: all zero is a request for nothing.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if device.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// The name of a device's driver.
pub(crate) fn driver(device: &str) -> io::Result<String> {
    let mut info = DriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        rest: [0; 160],
    };
    ethtool(device, &mut info)?;
    let driver = CStr::from_bytes_until_nul(&info.driver).unwrap_or_default();
    Ok(driver.to_string_lossy().into_owned())
}

/// Whether the kernel leaves checksums to a device; otherwise it computes them before it gives packets to it.
pub(crate) fn leaves_checksums(device: &str) -> io::Result<bool> {
    // `struct ethtool_value`.
    let mut asked = [ETHTOOL_GTXCSUM, 0];
    ethtool(device, &mut asked)?;
    Ok(asked[1] != 0)
}

/// Says whether it does.
pub(crate) fn leave_checksums(device: &str, leave: bool) -> io::Result<()> {
    ethtool(device, &mut [ETHTOOL_STXCSUM, u32::from(leave)])
}

/// Asks or tells a device something, by one of the structures that begin with a command.
fn ethtool<T>(device: &str, about: &mut T) -> io::Result<()> {
    let mut request = request(device)?;
    request.ifr_ifru.ifru_data = std::ptr::from_mut(about).cast();
    // SAFETY: plain calls; the request and what it points to are as long as the kernel expects and outlive them, and the
    // descriptor is nobody else's.
    let result = unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        let socket = OwnedFd::from_raw_fd(socket);
        libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs a function on a thread of another network namespace.
///
/// # Errors
/// The kernel does not let us go there.
pub(crate) fn inside<T: Send>(
    namespace: BorrowedFd<'_>,
    run: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let on_thread = move || {
        // SAFETY: a plain call; the thread is this function's own, and ends with it.
        match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(run()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    std::thread::scope(|scope| match scope.spawn(on_thread).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// A network namespace, by a path that leads to it. A descriptor that is kept would keep it, with its devices, when all others have left it.
pub(crate) struct Namespace {
    path: PathBuf,
    /// Which one that was.
    identity: (u64, u64),
}

impl Namespace {
    /// What the path leads to.
    fn at(path: PathBuf) -> io::Result<(Self, OwnedFd)> {
        let file = File::open(&path)?;
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        Ok((Self { path, identity }, file.into()))
    }

    /// Opens it, if it is still there.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        let (there, file) = Self::at(self.path.clone())?;
        match there.identity == self.identity {
            true => Ok(file),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

/// The other end of a veth.
pub(crate) struct OtherEnd {
    /// Its network namespace.
    pub(crate) namespace: Namespace,
    /// Its number there.
    pub(crate) index: u32,
}

/// Finds the other end of a veth of this network namespace, among those that have a name or a process. `None`: it is in none
/// of them.
pub(crate) fn other_end(index: u32) -> io::Result<Option<OtherEnd>> {
    let own = OwnedFd::from(File::open("/proc/thread-self/ns/net")?);
    let Some(peer) = Link::by_index(index)?.and_then(|link| link.link) else {
        return Ok(None);
    };
    let mut refused = None;
    for (namespace, opened) in namespaces() {
        // Whether the device of that number there is a veth whose other end is ours.
        let found = inside(opened.as_fd(), || {
            let link = Link::by_index(peer)?;
            let ours = namespace_number(own.as_fd())?;
            Ok::<_, io::Error>(link.filter(|link| {
                link.link == Some(index)
                    && (link.namespace == ours || link.namespace.is_none())
                    && driver(&link.name).is_ok_and(|driver| driver == "veth")
            }))
        });
        match found {
            Ok(Ok(Some(link))) if link.namespace.is_some() || same(&opened, &own) => {
                return Ok(Some(OtherEnd {
                    namespace,
                    index: peer,
                }));
            }
            Ok(_) => {}
            Err(error) => refused = Some(error),
        }
    }
    refused.map_or(Ok(None), Err)
}

/// Whether two descriptors are of one namespace.
fn same(one: &OwnedFd, other: &OwnedFd) -> bool {
    let identity = |fd: &OwnedFd| {
        let file = File::from(fd.try_clone().ok()?).metadata().ok()?;
        Some((file.dev(), file.ino()))
    };
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// The network namespaces that have a name or a process, each once.
fn namespaces() -> impl Iterator<Item = (Namespace, OwnedFd)> {
    let below = |directory: &str| {
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        entries.flatten().map(|entry| entry.path())
    };
    let named = ["/run/netns", "/run/docker/netns"].map(below);
    let processes = below("/proc").filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    });
    let paths: Vec<PathBuf> = named
        .into_iter()
        .flatten()
        .chain(processes.map(|path| path.join("ns/net")))
        .collect();
    let mut seen = std::collections::HashSet::new();
    paths.into_iter().filter_map(move |path| {
        let found = Namespace::at(path).ok()?;
        seen.insert(found.0.identity).then_some(found)
    })
}

/// A device as the kernel tells of it.
pub(crate) struct Link {
    name: String,
    pub(crate) up: bool,
    /// Its MAC address, if it has one.
    pub(crate) address: Option<[u8; 6]>,
    /// How long its packets may be.
    pub(crate) mtu: u32,
    /// How many segments it takes at once.
    pub(crate) gso_segments: u32,
    /// The number of the device that it is linked with.
    link: Option<u32>,
    /// The number by which this namespace knows that one's; none if it is the same.
    namespace: Option<i32>,
}

/// Of `linux/rtnetlink.h`, `linux/if_link.h` and `linux/net_namespace.h`.
const IFLA_LINK_NETNSID: u16 = 37;
const NETNSA_NSID: u16 = 1;
const NETNSA_FD: u16 = 3;
/// Lengths of `struct nlmsghdr`, `struct ifinfomsg`, and `struct rtgenmsg` with its padding.
const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const GENERAL_HEADER: usize = 4;

impl Link {
    /// The device of a number; `None`: there is none.
    fn by_index(index: u32) -> io::Result<Option<Self>> {
        let answer = match ask(libc::RTM_GETLINK, 0, &link_header(index, 0)) {
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(None),
            answer => answer?,
        };
        let flags = answer.get(8..).and_then(number);
        let flags = flags.map_or(0, u32::from_ne_bytes);
        let mut link = Self {
            name: String::new(),
            up: flags & libc::IFF_UP as u32 != 0,
            address: None,
            mtu: 0,
            gso_segments: GSO_SEGMENTS,
            link: None,
            namespace: None,
        };
        for (kind, value) in attributes(answer.get(LINK_HEADER..).unwrap_or_default()) {
            match kind {
                libc::IFLA_IFNAME => {
                    let name = CStr::from_bytes_until_nul(value).unwrap_or_default();
                    link.name = name.to_string_lossy().into_owned();
                }
                libc::IFLA_ADDRESS => link.address = value.try_into().ok(),
                libc::IFLA_MTU => link.mtu = number(value).map_or(0, u32::from_ne_bytes),
                IFLA_GSO_MAX_SEGS => {
                    let most = number(value).map(u32::from_ne_bytes);
                    link.gso_segments = most.unwrap_or(GSO_SEGMENTS);
                }
                libc::IFLA_LINK => link.link = number(value).map(u32::from_ne_bytes),
                IFLA_LINK_NETNSID => link.namespace = number(value).map(i32::from_ne_bytes),
                _ => {}
            }
        }
        Ok(Some(link))
    }
}

/// Of `linux/if_link.h`; and how many segments a device takes at once if nobody says otherwise (`GSO_MAX_SEGS` of the kernel).
const IFLA_GSO_MAX_SEGS: u16 = 40;
pub(crate) const GSO_SEGMENTS: u32 = 65535;

/// A device of this thread's network namespace, which must be there.
pub(crate) fn link(index: u32) -> io::Result<Link> {
    Link::by_index(index)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// Says how many segments a device takes at once: 1 has the kernel segment all before the device.
pub(crate) fn set_gso_segments(index: u32, most: u32) -> io::Result<()> {
    let mut body = link_header(index, 0);
    attribute(&mut body, IFLA_GSO_MAX_SEGS, &most.to_ne_bytes());
    tell(libc::RTM_SETLINK, 0, &body)
}

/// Of `linux/veth.h`.
const VETH_INFO_PEER: u16 = 1;

/// Makes two devices that are the ends of a veth, of this thread's network namespace.
pub(crate) fn add_pair(names: [&str; 2], mtu: u32) -> io::Result<()> {
    let end = |name: &str| {
        let mut body = link_header(0, 0);
        attribute(
            &mut body,
            libc::IFLA_IFNAME,
            &[name.as_bytes(), &[0]].concat(),
        );
        attribute(&mut body, libc::IFLA_MTU, &mtu.to_ne_bytes());
        body
    };
    let [mut body, other] = names.map(end);
    let mut data = Vec::new();
    attribute(&mut data, VETH_INFO_PEER, &other);
    let mut info = Vec::new();
    attribute(&mut info, libc::IFLA_INFO_KIND, b"veth\0");
    attribute(&mut info, libc::IFLA_INFO_DATA, &data);
    attribute(&mut body, libc::IFLA_LINKINFO, &info);
    tell(
        libc::RTM_NEWLINK,
        libc::NLM_F_CREATE | libc::NLM_F_EXCL,
        &body,
    )
}

/// Takes a device up that asks for no addresses.
pub(crate) fn set_up(index: u32) -> io::Result<()> {
    let body = link_header(index, (libc::IFF_UP | libc::IFF_NOARP) as u32);
    tell(libc::RTM_SETLINK, 0, &body)
}

/// Takes a device away; of a veth both ends go.
pub(crate) fn remove(index: u32) -> io::Result<()> {
    tell(libc::RTM_DELLINK, 0, &link_header(index, 0))
}

/// `struct ifinfomsg`: a device by its number, and flags that it is to have.
fn link_header(index: u32, flags: u32) -> Vec<u8> {
    let mut header = vec![0; LINK_HEADER];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// Writes an attribute behind others.
fn attribute(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend_from_slice(&((4 + value.len()) as u16).to_ne_bytes());
    body.extend_from_slice(&kind.to_ne_bytes());
    body.extend_from_slice(value);
}

/// Whether replies to TCP that the kernel of this network namespace has not seen are taken for what they are: it follows no
/// connections, or does not mind numbers that it does not expect. Otherwise they are of no connection to it (`INVALID`), and rules such
/// as kube-proxy's drop them.
pub(crate) fn lets_tcp_pass_unseen() -> bool {
    let value = |name| {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse::<u64>().ok()
    };
    // Without the first there is no connection tracking in this kernel.
    value("count").is_none_or(|followed| followed == 0)
        || value("tcp_be_liberal").is_some_and(|is| is != 0)
}

/// The number by which this network namespace knows another one; `None`: it does not.
fn namespace_number(of: BorrowedFd<'_>) -> io::Result<Option<i32>> {
    let mut body = [0; GENERAL_HEADER + 8];
    body[4..6].copy_from_slice(&8u16.to_ne_bytes());
    body[6..8].copy_from_slice(&NETNSA_FD.to_ne_bytes());
    body[8..12].copy_from_slice(&of.as_raw_fd().to_ne_bytes());
    let answer = ask(libc::RTM_GETNSID, 0, &body)?;
    Ok(attributes(answer.get(GENERAL_HEADER..).unwrap_or_default())
        .find(|(kind, _)| *kind == NETNSA_NSID)
        .and_then(|(_, value)| number(value).map(i32::from_ne_bytes))
        .filter(|number| *number >= 0))
}

fn number(value: &[u8]) -> Option<[u8; 4]> {
    value.first_chunk().copied()
}

/// The attributes of a message of netlink.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// Has the kernel change something of this thread's network namespace.
fn tell(kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<()> {
    match ask(kind, flags, body) {
        // "Error 0": it is done.
        Err(error) if error.raw_os_error() == Some(0) => Ok(()),
        answer => answer.map(drop),
    }
}

/// A socket of netlink.
fn netlink(family: libc::c_int) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: a plain call; the descriptor is nobody else's.
    unsafe {
        match libc::socket(libc::AF_NETLINK, kind, family) {
            -1 => Err(io::Error::last_os_error()),
            socket => Ok(OwnedFd::from_raw_fd(socket)),
        }
    }
}

/// Asks the kernel for one thing of this thread's network namespace: what follows the header of its answer.
fn ask(kind: u16, flags: libc::c_int, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut request = vec![0; HEADER];
    request[0..4].copy_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    // Of what there is nothing to answer to, that it is done.
    let flags = flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
    request[6..8].copy_from_slice(&(flags as u16).to_ne_bytes());
    request.extend_from_slice(body);
    let socket = netlink(libc::NETLINK_ROUTE)?;
    rustix::net::send(&socket, &request, rustix::net::SendFlags::empty())?;
    let mut answer = vec![0; 64 << 10];
    let (read, _) = rustix::net::recv(&socket, &mut answer[..], rustix::net::RecvFlags::empty())?;
    answer.truncate(read);
    let wrong = || io::Error::from(io::ErrorKind::InvalidData);
    let told = answer
        .get(4..6)
        .and_then(|kind| kind.first_chunk().copied());
    let body = answer.get(HEADER..).ok_or_else(wrong)?;
    if u16::from_ne_bytes(told.ok_or_else(wrong)?) == libc::NLMSG_ERROR as u16 {
        let error = number(body).map_or(0, i32::from_ne_bytes);
        return Err(io::Error::from_raw_os_error(-error));
    }
    Ok(body.to_vec())
}

/// Of `linux/sock_diag.h` and `linux/inet_diag.h`.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// Length of `struct inet_diag_req_v2`, and where in it the source port is.
const DIAG_REQUEST: usize = 56;
const DIAG_REQUEST_PORT: std::ops::Range<usize> = 8..10;
/// Where `struct inet_diag_msg` has the source port, the source address and the cookie.
const DIAG_PORT: usize = 4;
const DIAG_ADDRESS: usize = 8;
const DIAG_COOKIE: usize = 44;

/// The cookies of the UDP sockets of this thread's network namespace that are bound to an address and port, both as told.
pub(crate) fn udp_sockets(bound: SocketAddr) -> io::Result<Vec<u64>> {
    let family = match bound {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    };
    let mut request = vec![0; HEADER + DIAG_REQUEST];
    let length = request.len() as u32;
    request[0..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    request[6..8].copy_from_slice(&flags.to_ne_bytes());
    let body = &mut request[HEADER..];
    body[0] = family as u8;
    body[1] = libc::IPPROTO_UDP as u8;
    // In any state.
    body[4..8].fill(0xff);
    body[DIAG_REQUEST_PORT].copy_from_slice(&bound.port().to_be_bytes());
    let socket = netlink(libc::NETLINK_SOCK_DIAG)?;
    rustix::net::send(&socket, &request, rustix::net::SendFlags::empty())?;
    let mut cookies = Vec::new();
    let mut answer = vec![0; 64 << 10];
    loop {
        let flags = rustix::net::RecvFlags::empty();
        let (read, _) = rustix::net::recv(&socket, &mut answer[..], flags)?;
        for (kind, body) in messages(&answer[..read]) {
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(cookies),
                libc::NLMSG_ERROR => {
                    let error = number(body).map_or(0, i32::from_ne_bytes);
                    return Err(io::Error::from_raw_os_error(-error));
                }
                _ => cookies.extend(cookie_if_bound(body, bound)),
            }
        }
    }
}

/// The cookie of a socket that the kernel tells of, if that is bound so.
fn cookie_if_bound(told: &[u8], bound: SocketAddr) -> Option<u64> {
    let port = u16::from_be_bytes(*told.get(DIAG_PORT..)?.first_chunk()?);
    let address = told.get(DIAG_ADDRESS..)?;
    let address: IpAddr = match bound {
        SocketAddr::V4(_) => (*address.first_chunk::<4>()?).into(),
        SocketAddr::V6(_) => (*address.first_chunk::<16>()?).into(),
    };
    let cookie = u64::from_ne_bytes(*told.get(DIAG_COOKIE..)?.first_chunk()?);
    ((address, port) == (bound.ip(), bound.port())).then_some(cookie)
}

/// The messages of netlink in what was received: their kinds, and what follows their headers.
fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*rest.first_chunk()?) as usize;
        let kind = u16::from_ne_bytes(*rest.get(4..)?.first_chunk()?);
        let body = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, body))
    })
}

/// Of `linux/if_tun.h`.
const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
const TUNSETCARRIER: libc::c_ulong = 0x4004_54e2;
const IFF_TAP: libc::c_short = 2;
const IFF_NO_PI: libc::c_short = 0x1000;

/// Makes a descriptor of `/dev/net/tun` that of a tap device, whose frames have nothing before them.
pub(crate) fn take_tap(tun: BorrowedFd<'_>, device: &str) -> io::Result<()> {
    let mut request = request(device)?;
    request.ifr_ifru.ifru_flags = IFF_TAP | IFF_NO_PI;
    // SAFETY: the request is as long as the kernel expects and outlives the call.
    match unsafe { libc::ioctl(tun.as_raw_fd(), TUNSETIFF as _, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the host sees a cable at a tap device.
pub(crate) fn set_carrier(tap: BorrowedFd<'_>, carrier: bool) -> io::Result<()> {
    let carrier = libc::c_int::from(carrier);
    // SAFETY: the kernel reads one number, which outlives the call.
    match unsafe { libc::ioctl(tap.as_raw_fd(), TUNSETCARRIER as _, &raw const carrier) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_device_is_gone_if_the_kernel_says_so_and_not_if_it_cannot_be_asked() {
        assert!(!is_gone(1));
        assert!(is_gone(i32::MAX as u32));
        // Without a free descriptor, or memory.
        for errno in [libc::EMFILE, libc::ENFILE, libc::ENOMEM] {
            assert!(!says_gone(&io::Error::from_raw_os_error(errno)));
        }
    }

    #[test]
    fn sockets_are_told_by_all_that_they_are_bound_to() {
        let cookie = |socket: &UdpSocket| {
            let cookie = rustix::net::sockopt::socket_cookie(socket);
            cookie.expect("a cookie")
        };
        for (own, other) in [("127.0.0.1", "127.0.0.2"), ("::1", "::")] {
            let bind = |address: &str, port| {
                let address: IpAddr = address.parse().expect("an address");
                UdpSocket::bind((address, port))
            };
            let socket = bind(own, 0).expect("bound");
            let bound = socket.local_addr().expect("its address");
            assert_eq!(udp_sockets(bound).expect("asked"), [cookie(&socket)]);
            // The same port of another address; one of all may not be had beside it.
            let _beside = bind(other, bound.port());
            assert_eq!(udp_sockets(bound).expect("asked"), [cookie(&socket)]);
            drop(socket);
            assert!(udp_sockets(bound).expect("asked").is_empty());
        }
    }
}
