#!/usr/bin/env python3
"""One benchmark, written for each technology and for Takt (examples/benchmark): how many lines each takes, as in table 7.2 of
"Network Acceleration as a Service", and what Takt's agnostic interface costs over the bare technology.

Two hosts made of network namespaces. In each round every program has its turn, so that what disturbs the machine disturbs
all; medians of the rounds are shown. Every message must come back, and arrive: where it does not, this fails.

    tests/technologies/run.py [--rounds N] [--count N] [--build DIRECTORY] [--json FILE] [TECHNOLOGY...]

TECHNOLOGY: udp, xdp, dpdk, fabric; all without. As root. DIRECTORY (target/debug) has taktd and libtakt.so, and that of the
same name in target/datapaths the plugins."""

import argparse
import json
import os
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
PROGRAMS = TOP / "examples/benchmark"
# What each program is linked with, and which files besides its own it needs; benchmark.h is the same for all.
BARE = {
    "udp": ([], []),
    "xdp": (["libxdp", "libbpf"], ["frame.h"]),
    "dpdk": (["libdpdk"], ["frame.h"]),
    "fabric": (["libfabric"], []),
}
LENGTHS = [64, 1024, 8192]
# In one frame of the technology; bare AF_XDP has no more than that.
LONGEST = {"xdp": 1472}
# Those that lose nothing between two programs that are both there: a full receiver holds its sender back.
LOSSLESS = {"dpdk", "fabric"}
PATIENCE = 120
ADDRESSES = ["10.98.0.1", "10.98.0.2"]
GROUP_KEY = "dGhlIG5vZGVzIG9mIGEgYmVuY2htYXJrIHNoYXJlIGk="


class Fault(Exception):
    """Something that does not work."""


def lines(file):
    """Lines of C without comments and blank ones."""
    text = re.sub(r"/\*.*?\*/", "", file.read_text(), flags=re.S)
    return sum(1 for line in text.split("\n") if line.strip())


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, capture_output=True, **options).stdout


def core(host):
    """One of its own for each host, where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[host % len(cores)]


class Site:
    """Two hosts on one link, and a folder for files."""

    def __init__(self, folder):
        self.folder = folder
        self.names = [f"takt-b{host}-{os.getpid()}" for host in "12"]

    def __enter__(self):
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
            one, two = self.names
            run("ip", "link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", two)
            for name, address in zip(self.names, ADDRESSES):
                run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
                for device in ["lo", "eth0"]:
                    run("ip", "-n", name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def mac(self, host):
        return json.loads(run("ip", "-n", self.names[host], "-j", "link", "show", "eth0"))[0]["address"]

    def without_programs(self):
        """Takes away the programs that libxdp leaves at the interfaces."""
        for name in self.names:
            run("ip", "-n", name, "link", "set", "eth0", "xdp", "off")

    def start(self, host, command, pinned=False, **options):
        if pinned:
            command = ["taskset", "-c", core(host), *command]
        command = ["ip", "netns", "exec", self.names[host], *map(str, command)]
        return Process(command, self.folder, **options)


class Process:
    """A program that is ended with the block."""

    def __init__(self, command, folder, ready=None, environment=None):
        self.command = command
        self.said = tempfile.TemporaryFile("w+", dir=folder)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self.said,
            text=True,
            cwd=folder,
            env={**os.environ, **(environment or {})},
        )
        if ready:
            late = threading.Timer(PATIENCE, self.process.kill)
            late.start()
            got_ready = any(ready in line for line in self.process.stdout)
            late.cancel()
            if not got_ready:
                self.process.wait()
                raise self.fault("did not get ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.said.close()

    def fault(self, what):
        self.said.seek(0)
        return Fault(f"{shlex.join(self.command)} {what}\n{self.said.read()[-3000:]}")

    def output(self):
        try:
            out, _ = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise self.fault(f"took more than {PATIENCE} s") from None
        if self.process.returncode:
            raise self.fault(f"failed (status {self.process.returncode})")
        # Libraries may print more, before.
        words = out.strip().split("\n")[-1].split()
        return dict(zip(words[::2], map(float, words[1::2])))


def bare_arguments(site, name, host):
    """What the program needs to know behind its role."""
    own, other = ADDRESSES[host], ADDRESSES[1 - host]
    match name:
        case "udp":
            return [ADDRESSES[1], 7600]
        case "fabric":
            return ["tcp;ofi_rxm", ADDRESSES[1], 7600]
        case "xdp":
            return ["eth0", own] + ([other, site.mac(1)] if host == 0 else [])
        case "dpdk":
            role, place = ["client", "server"][host], site.folder / "bare-memif.sock"
            if role == "server":
                # The one before has left it.
                place.unlink(missing_ok=True)
            return [
                own,
                other,
                "--no-huge",
                "-m",
                128,
                "--no-pci",
                "--no-telemetry",
                "--no-shconf",
                "-l",
                core(host),
                "--log-level=error",
                f"--vdev=net_memif0,role={role},bsize=16384,socket-abstract=no,socket={place}",
            ]


def configuration(site, host, name, plugins):
    """That of a node whose lane has one datapath besides kernel UDP."""
    sections = {
        "udp": "",
        "xdp": '[datapath.xdp]\ninterface = "eth0"\n',
        "fabric": '[datapath.fabric]\nprovider = "tcp"\n',
        "dpdk": "[datapath.dpdk]\n"
        f'device = "net_memif0,role={["client", "server"][host]},bsize=16384,socket-abstract=no,'
        f'socket={site.folder}/takt-memif.sock"\n'
        f'address = "10.99.0.{host + 1}/24"\nhugepages = "off"\nmtu = 9000\n',
    }
    return f"""
[node]
name = "h{host}"
address = "{ADDRESSES[host]}"
plugins = "{plugins}"
[security]
group_key_file = "{site.folder}/group.key"
key_file = "{site.folder}/{host}.key"
[[lane]]
idle = "adaptive"
[[listener]]
path = "{site.folder}/{host}.sock"
[admin]
socket = "{site.folder}/{host}-admin.sock"
[log]
level = "warn"
[[peer]]
address = "{ADDRESSES[1 - host]}:7400"
{sections[name]}"""


def both(site, program, arguments, lossless, lengths, count, environment=None):
    """One turn of a program: figures by length. One that polls has a core of its own on each host."""
    pinned = environment is None
    found = {}
    for length in lengths:
        figures = {}
        for what, messages in [("ping", count), ("stream", 4 * count)]:
            serve, command = [program, "serve", *arguments(1)], [program, what, messages, length, *arguments(0)]
            # A server of its own for each: DPDK's memif takes one client.
            with (
                site.start(1, serve, ready="ready", environment=environment, pinned=pinned) as server,
                site.start(0, command, environment=environment, pinned=pinned) as client,
            ):
                try:
                    figures.update(client.output())
                except Fault as fault:
                    raise Fault(f"{fault}\n{server.fault('said:')}") from None
        if figures["round_trips"] != count:
            raise Fault(f"{program}: {figures['round_trips']} of {count} round trips")
        if lossless and figures["arrived"] != figures["sent"] or not figures["arrived"]:
            raise Fault(f"{program}: {figures['arrived']} of {figures['sent']} messages arrived")
        found[length] = figures
    return found


def ready_node(site, host, build, file):
    """A daemon that says it is ready (sd_notify(3))."""
    notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    place = site.folder / f"{host}.notify"
    place.unlink(missing_ok=True)
    notices.bind(str(place))
    notices.settimeout(30)
    node = site.start(host, [build / "taktd", "--config", file], environment={"NOTIFY_SOCKET": str(place)})
    try:
        while b"READY=1" not in notices.recv(4096):
            pass
    except TimeoutError:
        fault = node.fault("did not get ready")
        node.__exit__()
        raise fault from None
    finally:
        notices.close()
    return node


def until_carried(site, host, command, environment):
    """Waits until a stream can be opened: a memif has its link some time after both nodes are there, and is refused before."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with site.start(host, command, ready="ready", environment=environment):
                return
        except Fault:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def takt_turn(site, name, build, lengths, count):
    """One turn of Takt, over two nodes."""
    nodes = []
    try:
        # The server of shared memory has to be there first.
        for host in (1, 0):
            file = site.folder / f"{host}.toml"
            file.write_text(configuration(site, host, name, TOP / "target/datapaths" / build.name))
            nodes.append(ready_node(site, host, build, file))

        def arguments(host):
            return [site.folder / f"{host}.sock", name]

        library = {"LD_LIBRARY_PATH": str(site.folder)}
        for host in (1, 0):
            until_carried(site, host, [site.folder / "takt", "serve", *arguments(host)], library)
        return both(site, site.folder / "takt", arguments, False, lengths, count, library)
    except Fault as fault:
        raise Fault("\n".join([str(fault), *(str(node.fault("said:")) for node in nodes)])) from None
    finally:
        for node in nodes:
            node.__exit__()


def compile_all(site, technologies, build):
    """Programs into the folder; Takt's beside its library."""
    libtakt = build / "libtakt.so"
    if not libtakt.exists():
        raise Fault(f"{libtakt} is not there: make build, or cargo build -p takt-capi -p taktd")
    (site.folder / "libtakt.so.0").symlink_to(libtakt)
    (site.folder / "libtakt.so").symlink_to(libtakt)
    flags = {"takt": ["-I", TOP / "include", "-L", site.folder, "-ltakt"]}
    for name in technologies:
        packages, _ = BARE[name]
        flags[name] = run("pkg-config", "--cflags", "--libs", *packages).split() if packages else []
    for name, options in flags.items():
        source = PROGRAMS / f"{name}.c"
        warnings = ["-O2", "-Wall", "-Wextra", "-Werror"]
        try:
            run("cc", *warnings, source, "-o", site.folder / name, *options)
        except subprocess.CalledProcessError as error:
            raise Fault(f"{source}: {error.stderr}") from None


def measure(options):
    """Figures of each round: {technology: {"bare" or "takt": {length: [figures]}}}."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="takt-b-") as folder, Site(Path(folder)) as site:
        (site.folder / "group.key").write_text(GROUP_KEY)
        (site.folder / "group.key").chmod(0o600)
        compile_all(site, options.technologies, options.build)
        for turn in range(options.rounds):
            for name in options.technologies:
                print(f"round {turn + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
                lengths = [length for length in LENGTHS if length <= LONGEST.get(name, length)]
                bare = both(
                    site,
                    site.folder / name,
                    lambda host, name=name: bare_arguments(site, name, host),
                    name in LOSSLESS,
                    lengths,
                    options.count,
                )
                site.without_programs()
                takt = takt_turn(site, name, options.build, LENGTHS, options.count)
                for side, figures in [("bare", bare), ("takt", takt)]:
                    for length, values in figures.items():
                        found.setdefault(name, {}).setdefault(side, {}).setdefault(length, []).append(values)
    return found


def table(rows):
    widths = [max(len(str(row[at])) for row in rows) for at in range(len(rows[0]))]
    for number, row in enumerate(rows):
        print("| " + " | ".join(str(cell).ljust(width) for cell, width in zip(row, widths)) + " |")
        if not number:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")


def count_lines():
    """Lines for each technology: of its own, and with what all share."""
    shared, takt = lines(PROGRAMS / "benchmark.h"), lines(PROGRAMS / "takt.c")
    rows = [["written for", "its own lines", "times Takt's", "whole program"]]
    for name, files in [("takt", [])] + [(name, files) for name, (_, files) in BARE.items()]:
        own = sum(lines(PROGRAMS / file) for file in [f"{name}.c", *files])
        rows.append([name, own, f"{own / takt:.1f}", own + shared])
    return rows


def middle(rounds, key):
    return statistics.median(figures[key] for figures in rounds)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("technologies", nargs="*", metavar="TECHNOLOGY", help=f"some of {', '.join(BARE)}; all without")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=20000, help="round trips of a turn; four times as many one way")
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=TOP / "target/debug")
    parser.add_argument("--json", type=Path, help="where to write all figures")
    options = parser.parse_args()
    for name in set(options.technologies) - set(BARE):
        parser.error(f"{name} is no technology: {', '.join(BARE)}")
    options.technologies = options.technologies or list(BARE)
    try:
        found = measure(options)
    except Fault as fault:
        print(f"technologies: {fault}", file=sys.stderr)
        return 1
    rows = [["technology", "bytes", "round trip, bare", "Takt", "one way, bare", "Takt", "arrived, bare", "Takt"]]
    for name, sides in found.items():
        for length in LENGTHS:
            row = [name, length]
            for key, shown in [
                ("median_ns", lambda value: f"{value / 1000:.1f} µs"),
                ("per_second", lambda value: f"{value:,.0f}/s"),
                ("arrived", lambda value: f"{value / options.count / 4:.1%}"),
            ]:
                for side in ("bare", "takt"):
                    rounds = sides[side].get(length)
                    row.append(shown(middle(rounds, key)) if rounds else "–")
            rows.append(row)
    table(rows)
    print()
    table(count_lines())
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    print(f"\ntechnologies: {len(found)} of {len(options.technologies)} passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
