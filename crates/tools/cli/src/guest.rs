//! `takt guest`: the network device of a virtual machine.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use takt_ingress::guest::queue::Queue;
use takt_ingress::guest::{Guest as Device, Options, status};

use crate::failure::Failure;
use crate::output::{Align, Form, print, print_json, table};
use crate::signals::{readable_at_signal, tell_ready};

const HELP: &str = "\
The guest is not changed: it has a virtio network device, whose back end this is (vhost-user). Queue pairs are for
traffic classes: what the guest sends by one leaves through the runtime of this node, in the windows of its class; all
else, and all that arrives, goes by a tap device of the host, as without Takt. One process for each guest; needs
CAP_NET_ADMIN for the tap device.

Examples:
  ip tuntap add dev vm1 mode tap && ip link set vm1 master br0 up
  takt guest attach --vhost-user /run/vm1.sock --tap vm1 --queue kernel --queue class=5
  takt guest attach --vhost-user /run/vm1.sock --tap vm1 --queue class=6,cycle=1ms+250us --required
  takt guest status --vhost-user /run/vm1.sock

  qemu-system-x86_64 ... -m 1G -object memory-backend-memfd,id=m,size=1G,share=on -machine q35,memory-backend=m \\
      -chardev socket,id=c,path=/run/vm1.sock,reconnect=1 -netdev vhost-user,id=n,chardev=c,queues=2 \\
      -device virtio-net-pci,netdev=n,mac=02:00:00:00:00:01,mq=on,vectors=6";

/// Serves the network device of a virtual machine, its time-sensitive frames by the runtime.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Guest {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Serve a guest's device, until a signal ends it
    Attach(Attach),
    /// Show whether a VMM is connected, and what became of frames
    Status(Status),
}

#[derive(Debug, Args)]
struct Attach {
    #[command(flatten)]
    socket: Socket,
    /// The tap device that the guest has for all that the runtime does not send, and for all that arrives
    #[arg(long, value_name = "INTERFACE")]
    tap: String,
    /// What the guest's next queue pair is for: `kernel`, or class=CLASS[,cycle=CYCLE[+OFFSET]][,lead=TIME][,socket=PATH]. CLASS is 0 to
    /// 7, or `frame` for the priority of each frame's VLAN tag or its DSCP. With a cycle frames leave at its next instant that is no nearer
    /// than the lead (500us). Once for each queue pair, 16 at most
    #[arg(long = "queue", value_name = "PURPOSE", default_value = "class=frame")]
    queues: Vec<Queue>,
    /// The guest's socket of the runtime, for queues that name none: what its listener may send, and where to [default: $TAKT_SOCKET, or
    /// /run/takt/takt.sock]
    #[arg(long = "socket", value_name = "SOCKET")]
    runtime: Option<PathBuf>,
    /// Drop what a queue of a class sends and the runtime does not, instead of leaving it to the kernel
    #[arg(long)]
    required: bool,
}

#[derive(Debug, Args)]
struct Status {
    #[command(flatten)]
    socket: Socket,
    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Args)]
struct Socket {
    /// The socket at which the VMM finds the device
    #[arg(long, value_name = "SOCKET")]
    vhost_user: PathBuf,
}

impl Guest {
    pub fn run(self) -> Result<(), Failure> {
        match self.action {
            Action::Attach(attach) => attach.run(),
            Action::Status(status) => status.run(),
        }
    }
}

impl Attach {
    fn run(self) -> Result<(), Failure> {
        let stop = readable_at_signal()?;
        let mut queues = self.queues;
        for queue in &mut queues {
            if let Queue::Runtime(served) = queue
                && served.socket.is_none()
            {
                served.socket.clone_from(&self.runtime);
            }
        }
        let socket = self.socket.vhost_user;
        let told = socket.display().to_string();
        let device = Device::new(&Options {
            socket,
            tap: self.tap,
            queues,
            required: self.required,
        })?;
        let otherwise = match self.required {
            true => "is dropped",
            false => "goes the kernel's way",
        };
        print(&format!(
            "{told}: serving a guest; what queues of a class send and the runtime does not {otherwise}\n"
        ))?;
        tell_ready();
        Ok(device.run(stop)?)
    }
}

impl Status {
    fn run(self) -> Result<(), Failure> {
        let socket = self.socket.vhost_user;
        let status = status(&socket)?;
        if self.form.json {
            return print_json(&status);
        }
        let columns = [
            ("queue", Align::Right),
            ("purpose", Align::Left),
            ("frames", Align::Left),
            ("count", Align::Right),
        ];
        let rows = status.queues.iter().flat_map(|queue| {
            let counted = queue.counters.iter().filter(|counter| counter.frames > 0);
            counted.map(|counter| {
                vec![
                    queue.queue.to_string(),
                    queue.purpose.clone(),
                    counter.name.clone(),
                    counter.frames.to_string(),
                ]
            })
        });
        let rows: Vec<_> = rows.collect();
        let connected = match (status.connected, status.connections) {
            (true, _) => "a VMM is connected",
            (false, 0) => "no VMM has connected yet",
            (false, _) => "no VMM is connected now",
        };
        let purposes = status.queues.iter().map(|queue| queue.purpose.as_str());
        let purposes = purposes.collect::<Vec<_>>().join(", ");
        let mut text = format!(
            "{}: {connected}; queue pairs: {purposes}; tap device {}\n",
            socket.display(),
            status.tap
        );
        if let Some(fault) = &status.fault {
            text += &format!("a connection was broken off: {fault}\n");
        }
        if !rows.is_empty() {
            text += &table(&columns, rows);
        }
        print(&text)
    }
}
