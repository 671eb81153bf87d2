//! Real guests: a distribution's kernel with its virtio driver and its queueing disciplines, started by QEMU, emulated. What they show is that
//! things work; the time that they take says nothing.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use takt_testing::{Directory, until};

use super::guest::{mac, numbers};
use super::support::{GUEST, PORT, Running, Site, built};

/// A guest.
struct Machine {
    qemu: Child,
    serial: UnixStream,
    scratch: Directory,
}

impl Machine {
    /// With so many queue pairs.
    fn start(site: &Site, pairs: usize) -> Self {
        let image = PathBuf::from(
            std::env::var_os("TAKT_GUEST_IMAGE").expect("TAKT_GUEST_IMAGE: run `make test-guests`"),
        );
        let scratch = Directory::new();
        let place = |name: &str| scratch.join(name).display().to_string();
        let log = std::fs::File::create(scratch.join("said")).expect("a file");
        // Interrupts by message take the kernel's help, which an emulated machine has not: vectors=0.
        let qemu = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-smp", "2", "-m", "512"])
            .args(["-object", "memory-backend-memfd,id=m,size=512M,share=on"])
            .args(["-machine", "q35,memory-backend=m"])
            .arg("-kernel")
            .arg(image.join("vmlinuz"))
            .arg("-initrd")
            .arg(image.join("initrd.gz"))
            .args(["-append", "console=ttyS0 quiet panic=-1"])
            .args(["-display", "none", "-monitor", "none"])
            .arg("-chardev")
            .arg(format!(
                "socket,id=c,path={},reconnect=1",
                site.vhost_user().display()
            ))
            .arg("-netdev")
            .arg(format!("vhost-user,id=n,chardev=c,queues={pairs}"))
            .arg("-device")
            .arg(format!(
                "virtio-net-pci,netdev=n,mac={},mq={},vectors=0",
                mac(),
                if pairs > 1 { "on" } else { "off" }
            ))
            .arg("-chardev")
            .arg(format!(
                "socket,id=s,path={},server=on,wait=off,logfile={}",
                place("serial"),
                place("console")
            ))
            .args(["-serial", "chardev:s"])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor"))
            .stderr(log)
            .spawn()
            .expect("QEMU: run `make test-guests`");
        let serial = until("the serial line", || {
            UnixStream::connect(scratch.join("serial")).ok()
        });
        let patience = Some(Duration::from_secs(60));
        serial.set_read_timeout(patience).expect("a timeout");
        let machine = Self {
            qemu,
            serial,
            scratch,
        };
        machine.wait_until_started(1);
        machine
    }

    /// Waits until it has started so often, and gives it its address.
    fn wait_until_started(&self, times: usize) {
        until("the guest has started", || {
            let console = std::fs::read(self.scratch.join("console")).unwrap_or_default();
            let text = String::from_utf8_lossy(&console);
            (text.matches("guest: ready").count() >= times).then_some(())
        });
        self.run(&format!(
            "ip link set eth0 mtu 1450 up && ip address add {GUEST}/16 dev eth0"
        ));
    }

    /// Does something in the guest, which must end well. What it prints.
    fn run(&self, command: &str) -> String {
        let mut serial = &self.serial;
        // The shell repeats nothing, so that what it says with the mark is the end alone.
        let line = format!("{{ {command}; }} 2>&1; echo \"<<$?>>\"\n");
        serial.write_all(line.as_bytes()).expect("typed");
        let mut text = String::new();
        loop {
            let mut more = [0; 4096];
            let length = serial.read(&mut more).expect("the guest answers");
            assert!(length > 0, "the guest has ended: {text}");
            text += &String::from_utf8_lossy(&more[..length]);
            if let Some((said, code)) = text.rsplit_once("<<")
                && let Some((code, _)) = code.split_once(">>")
            {
                assert_eq!(code, "0", "{command}: {said}");
                return said.replace('\r', "");
            }
        }
    }

    /// The priorities of sockets as queues: 5 by the second one, all others by the first one.
    fn map_priorities(&self) {
        self.run(
            "tc qdisc replace dev eth0 root mqprio num_tc 2 map 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 queues 1@0 1@1 hw 0",
        );
    }

    /// Sends datagrams to the far pod, with a priority.
    fn talk(&self, site: &Site, count: u32, priority: u8) {
        let to = site.there().address();
        self.run(&format!(
            "talker none {to} {PORT} {count} 1000 0 prio={priority}"
        ));
    }

    fn ping(&self, site: &Site) {
        self.run(&format!("ping -c 1 -w 20 {}", site.there().address()));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        if std::thread::panicking() {
            for name in ["said", "console"] {
                let text = std::fs::read(self.scratch.join(name)).unwrap_or_default();
                eprintln!("{name}:\n{}", String::from_utf8_lossy(&text));
            }
        }
    }
}

const QUEUES: [&str; 4] = ["--queue", "kernel", "--queue", "class=5"];

fn started() -> (Site, Running, Machine) {
    let site = Site::bridged();
    site.cut_before_the_wire();
    site.add_tap();
    let device = site.attach_guest(&QUEUES);
    let machine = Machine::start(&site, 2);
    machine.map_priorities();
    machine.ping(&site);
    (site, device, machine)
}

#[test]
#[ignore = "make test-guests"]
fn an_unmodified_guest_sends_its_classes_by_the_runtime_and_all_else_by_the_kernel() {
    let (site, device, machine) = started();
    let wire = site.capture();
    machine.talk(&site, 30, 0);
    machine.talk(&site, 30, 5);
    let arrivals = wire.wait(60);
    let of = |class| arrivals.iter().filter(|one| one.class == class).count();
    assert_eq!((of(0), of(5)), (30, 30), "{arrivals:?}");
    site.until_guest(1, "sent", 30);
    // What is the kernel's, whole: 4 MiB of TCP either way.
    let listener = {
        let _inside = site.there().enter().expect("the lab is up");
        TcpListener::bind("0.0.0.0:5002").expect("bind")
    };
    let echo = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut all = vec![0; 4 << 20];
        stream.read_exact(&mut all).expect("received");
        stream.write_all(&all).expect("sent");
    });
    let said = machine.run(&format!(
        "head -c 4194304 /dev/urandom > /tmp/a; nc {} 5002 < /tmp/a > /tmp/b; cmp /tmp/a /tmp/b && echo the same",
        site.there().address()
    ));
    assert!(said.contains("the same"), "{said}");
    echo.join().expect("the echo");
    // The guest's kernel knows its device, and that nothing went wrong.
    let said = machine.run("ethtool -l eth0; ip -s link show eth0");
    assert!(said.contains("Combined:	2"), "{said}");
    device.terminate();
}

#[test]
#[ignore = "make test-guests"]
fn a_guest_with_one_queue_has_the_classes_of_its_frames() {
    let site = Site::bridged();
    site.add_tap();
    let device = site.attach_guest(&[]);
    let machine = Machine::start(&site, 1);
    machine.ping(&site);
    let wire = site.capture();
    let to = site.there().address();
    machine.run(&format!("talker none {to} {PORT} 20 1000 0 tos=160"));
    let arrivals = wire.wait(20);
    assert!(arrivals.iter().all(|one| one.class == 5), "{arrivals:?}");
    // Echoes are of class 0.
    until("all were the runtime's", || {
        (site.guest_counted(0, "sent") >= 20).then_some(())
    });
    device.terminate();
}

#[test]
#[ignore = "make test-guests"]
fn the_guests_taprio_sends_into_the_gates_of_the_node() {
    const CYCLE: i64 = 100_000_000;
    let (site, device, machine) = started();
    site.schedule(
        "taprio num_tc 8 map 0 1 2 3 4 5 6 7 0 0 0 0 0 0 0 0 queues 1@0 1@1 1@2 1@3 1@4 1@5 1@6 1@7 base-time 0 \
         sched-entry S df 80000000 sched-entry S 20 20000000",
    );
    // The guest's own: its clock is its own, too, so that its windows are somewhere else.
    // Linux 6.1 puts the priorities of the mqprio that it replaces out of force after those of the new one have been put in.
    machine.run(
        "tc qdisc del dev eth0 root; tc qdisc add dev eth0 root handle 100 taprio num_tc 2 map 0 0 0 0 0 1 0 0 0 0 0 0 0 0 0 0 queues 1@0 1@1 \
         base-time 0 sched-entry S 01 10000000 sched-entry S 02 10000000 clockid CLOCK_TAI",
    );
    let wire = site.capture();
    machine.talk(&site, 200, 5);
    let arrivals = wire.wait(200);
    let phases = arrivals.iter().map(|one| one.at.rem_euclid(CYCLE));
    // The window is the last fifth of each cycle; the machine may stand still for as long as half of the others' time.
    let outside: Vec<_> = phases
        .filter(|phase| (40_000_000..80_000_000).contains(phase))
        .collect();
    assert!(arrivals.iter().all(|one| one.class == 5), "{arrivals:?}");
    assert!(outside.is_empty(), "{outside:?}");
    site.until_guest(1, "sent", 200);
    device.terminate();
}

#[test]
#[ignore = "make test-guests"]
fn guests_backends_and_runtimes_are_started_anew_under_those_that_run() {
    let (mut site, device, machine) = started();
    let listener = site.listener();
    machine.talk(&site, 1, 5);
    assert_eq!(numbers(&listener, 1), [0]);
    // The back end: QEMU connects again.
    device.kill();
    let device = site.attach_guest(&QUEUES);
    until("QEMU has connected again", || {
        site.guest_status().connected.then_some(())
    });
    machine.ping(&site);
    machine.talk(&site, 1, 5);
    assert_eq!(numbers(&listener, 1), [0]);
    site.until_guest(1, "sent", 1);
    // The runtime.
    site.kill_daemon();
    site.start_daemon();
    until("the runtime is used again", || {
        machine.talk(&site, 1, 5);
        (site.guest_counted(1, "sent") > 1).then_some(())
    });
    // The guest, by itself: its driver begins anew with the rings.
    let mut serial = &machine.serial;
    serial.write_all(b"reboot -f\n").expect("typed");
    machine.wait_until_started(2);
    machine.map_priorities();
    machine.ping(&site);
    machine.talk(&site, 1, 5);
    // And with all of its machine.
    drop(machine);
    until("QEMU has gone", || {
        (!site.guest_status().connected).then_some(())
    });
    let machine = Machine::start(&site, 2);
    machine.map_priorities();
    machine.ping(&site);
    assert!(site.guest_status().connections >= 2);
    device.terminate();
}

#[test]
#[ignore = "make test-guests"]
fn the_runtime_works_in_a_guest_as_it_does_on_a_host() {
    let (site, device, machine) = started();
    let key = "TAKT_GROUP_KEY=MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    for datapath in ["udp", "xdp"] {
        let mut command = site.there().command(built("takt")).expect("the lab is up");
        command
            .args([
                "sub",
                "weather",
                "--embedded",
                "--count",
                "3",
                "--timeout",
                "60s",
            ])
            .args(["--address", &site.there().address().to_string()])
            .args(["--peer", &format!("{GUEST}:7400")])
            .env("TAKT_GROUP_KEY", key.split_once('=').expect("two").1);
        let subscriber = Running::start(&mut command);
        machine.run(&format!(
            "{key} takt pub weather hello --count 3 --reliable --embedded --wait 60s --address {GUEST} --port 7400 \
             --peer {}:7400 --interface eth0 --qos fast --datapath {datapath}",
            site.there().address()
        ));
        let (well, said) = subscriber.end();
        assert!(well && said.matches("hello").count() == 3, "{said}");
    }
    device.terminate();
}
