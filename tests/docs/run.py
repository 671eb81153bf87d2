#!/usr/bin/env python3
"""Does what README and the how-to pages say, literally, in a fresh Debian 12 that has the packages, and what their programs are
written in (a C compiler, Python), and nothing else.

Every code block of a page is marked by an HTML comment above it; a page with an unmarked block is at fault:

    <!-- run -->                     the block is given to a shell that lasts as long as the page; it must succeed
    <!-- run user -->                the same, as an ordinary user
    <!-- terminal -->                the block runs in a terminal of its own, beside those that follow
    <!-- terminal user -->
    <!-- expect: TEXT -->            what the terminal, or the block, before must print
    <!-- file: NAME -->              the block is written to that file, for the blocks that follow
    <!-- check -->                   a configuration (TOML): `takt check` takes it
    <!-- compile: c -->              a part of a program, or `python`: it compiles
    <!-- skip: REASON -->            not run here, and why: that is printed

Each step is printed with the time it took, and how long after the installation the first message, the first exchange between two nodes
and the first launch time met were there.

Usage: tests/docs/run.py [--links | --record] [PAGE...]      as root; BUILD (target/debug) has what is packed
"""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import termios
import threading
import time
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
# The one on operation ends with the removal of the packages.
LAST = "docs/how-to/operate.md"
PAGES = ["README.md", "examples/README.md"] + sorted(
    (str(page.relative_to(TOP)) for page in (TOP / "docs/how-to").glob("*.md")), key=lambda page: (page == LAST, page)
)
# What a text that a page expects means for a newcomer; the first time counts.
MILESTONES = {
    "hello": ["first message", "first exchange between two nodes"],
    "0 of 50 datagrams came before their launch time": ["first launch times met"],
}
# Seconds; a machine that builds meanwhile is slow.
PATIENCE = 300
USER = "1000"


class Fault(Exception):
    """Something that a page says does not hold."""


def blocks(page):
    """The code blocks of a page: (line, directives, language, text)."""
    found, directives, lines = [], [], (TOP / page).read_text().split("\n")
    at = 0
    while at < len(lines):
        line = lines[at]
        comment = re.fullmatch(r"\s*<!-- (run|terminal|check|compile|file|skip|expect)\b:?\s*(.*?) -->\s*", line)
        if comment:
            directives.append((at + 1, comment[1], comment[2]))
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            end = at + 1
            while not lines[end].strip().startswith("```"):
                end += 1
            found.append((at + 1, directives, fence[1], "\n".join(lines[at + 1 : end])))
            directives = []
            at = end
        elif line.startswith("    ") and begins(lines, at) and not in_list(lines, at):
            end = at
            while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
                end += 1
            found.append((at + 1, directives, "", "\n".join(text[4:] for text in lines[at:end]).rstrip()))
            directives = []
            at = end - 1
        at += 1
    return found, directives


def begins(lines, at):
    """Whether an indented line begins a block: nothing but a blank line or a comment is above."""
    return at == 0 or not lines[at - 1].strip() or lines[at - 1].rstrip().endswith("-->")


def in_list(lines, at):
    """Whether an indented line goes on with a list."""
    for line in reversed(lines[:at]):
        if line.strip() and not line.startswith(" "):
            return bool(re.match(r"[-*] |\d+\. ", line))
    return False


class System:
    """A fresh Debian with the packages, in namespaces of its own."""

    def __init__(self, work):
        self.root = Path(work) / "root"
        fresh = self.fresh()
        build = os.environ.get("BUILD", "target/debug")
        subprocess.run(["cp", "-a", fresh, self.root], check=True)
        packages = self.root / "root/takt/out/deb"
        packages.mkdir(parents=True)
        subprocess.run(
            ["scripts/deb.sh"], cwd=TOP, check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "OUT": str(packages), "BUILD": build, "COMPRESSION": "none"},
        )
        # A checkout's examples, for those who read them.
        for home in ("root/takt", "home/user"):
            shutil.copytree(TOP / "examples", self.root / home / "examples")
        self.holder = subprocess.Popen(
            ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh", "-c", """
                set -e
                mount --make-rprivate /
                mount --bind "$0" "$0"
                mount -t proc proc "$0/proc"
                mount -t sysfs sysfs "$0/sys"
                mount --rbind /dev "$0/dev"
                mount -t tmpfs tmpfs "$0/run"
                mount -t tmpfs -o mode=1777 tmpfs "$0/tmp"
                mkdir -p -m 700 "$0/run/user/1000" "$0/home/user"
                chown -R 1000:1000 "$0/run/user/1000" "$0/home/user"
                ip link set lo up
                echo ready
                exec sleep infinity""", self.root],
            stdout=subprocess.PIPE, text=True,
        )
        if self.holder.stdout.readline() != "ready\n":
            raise Fault("cannot make the system's namespaces: root is needed")
        children = Path(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children")
        self.inside = children.read_text().split()[0]

    @staticmethod
    def fresh():
        """A fresh system with a compiler and Python, made once."""
        minimal, fresh = (TOP / "target/tools" / name for name in ("bookworm", "bookworm-programs"))
        if (fresh / "complete").exists():
            return fresh
        if not (minimal / "complete").exists():
            raise Fault(f"{minimal} is not there: run tests/install/run.sh first, which makes it")
        print("a fresh Debian 12 with a compiler and Python: once", flush=True)
        shutil.rmtree(fresh, ignore_errors=True)
        subprocess.run(["cp", "-a", minimal, fresh], check=True)
        (fresh / "complete").unlink()
        shutil.copy("/etc/resolv.conf", fresh / "etc/resolv.conf")
        for command in ("update", "install -y --no-install-recommends gcc libc6-dev pkg-config python3-minimal"):
            done = subprocess.run(
                ["chroot", fresh, "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive",
                 "LC_ALL=C.UTF-8", "apt-get", "-q", *command.split()],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            if done.returncode != 0:
                raise Fault(f"apt-get {command}\n{done.stdout}")
        (fresh / "complete").touch()
        return fresh

    def shell(self, user, **more):
        """A shell in it."""
        command = ["nsenter", "--target", self.inside, "--mount", "--net", "--pid",
                   "chroot", str(self.root), "env", "-i", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
                   "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        if user:
            command += ["XDG_RUNTIME_DIR=/run/user/1000", "HOME=/home/user", "setpriv", f"--reuid={USER}",
                        f"--regid={USER}", "--clear-groups", "bash", "-c", "cd; exec bash -s"]
        else:
            command += ["HOME=/root", "bash", "-c", "cd /root/takt; exec bash -s"]
        return subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True, **more)

    def close(self):
        self.holder.kill()
        self.holder.wait()


class Page:
    """One page on its way."""

    def __init__(self, system, name, work):
        self.system, self.name, self.work = system, name, work
        self.shells, self.terminals, self.outputs, self.said = {}, [], [], None
        self.run_blocks = 0

    def at(self, line):
        return f"{self.name}:{line}"

    def shell(self, user):
        if user not in self.shells:
            out = open(Path(self.work) / f"shell-{len(self.shells)}-{time.monotonic_ns()}", "w+")
            self.shells[user] = (self.system.shell(user, stdout=out, stderr=subprocess.STDOUT), out)
        return self.shells[user]

    def run(self, line, user, text):
        shell, out = self.shell(user)
        begin = out.seek(0, os.SEEK_END)
        mark = f"--done-{line}--"
        # Each line is a step of its own for a reader: the first that fails is told.
        shell.stdin.write(f"set -e; trap 'echo failed' EXIT\n{text}\nset +e; trap - EXIT; echo; echo {mark}\n")
        shell.stdin.flush()
        start = time.monotonic()
        while True:
            said = self.read(out, begin)
            if mark in said:
                break
            if shell.poll() is not None or time.monotonic() - start > PATIENCE:
                for terminal in self.outputs:
                    said += f"\n--- in a terminal of its own\n{self.read(terminal, 0)}"
                raise Fault(f"{self.at(line)}: fails\n{text}\n--- it says\n{said}")
            time.sleep(0.02)
        self.said = (out, begin)

    def terminal(self, line, user, text):
        out = open(Path(self.work) / f"terminal-{len(self.terminals)}-{time.monotonic_ns()}", "w+")
        # Programs write to a terminal line by line.
        ours, theirs = pty.openpty()
        threading.Thread(target=self.copy, args=(ours, out.name), daemon=True).start()
        shell = self.system.shell(user, stdout=theirs, stderr=subprocess.STDOUT)
        os.close(theirs)
        shell.stdin.write(text + "\n")
        shell.stdin.close()
        self.terminals.append(shell)
        self.outputs.append(out)
        self.said = (out, 0)
        self.terminal_said = self.said

    @staticmethod
    def copy(terminal, name):
        """What is written to a terminal, into a file, until the terminal is closed."""
        with open(name, "ab", buffering=0) as out:
            while True:
                try:
                    said = os.read(terminal, 65536)
                except OSError:
                    break
                if not said:
                    break
                out.write(said.replace(b"\r\n", b"\n"))
        os.close(terminal)

    @staticmethod
    def read(out, begin):
        out.flush()
        with open(out.name) as text:
            text.seek(begin)
            return text.read()

    def expect(self, line, text):
        start = time.monotonic()
        places = [self.said, getattr(self, "terminal_said", None)]
        while not any(place and text in self.read(*place) for place in places):
            if time.monotonic() - start > PATIENCE:
                said = "\n".join(self.read(*place) for place in places if place)
                raise Fault(f"{self.at(line)}: `{text}` is not printed, but\n{said}")
            time.sleep(0.02)

        for milestone in MILESTONES.get(text, [])[:1]:
            MILESTONES[text].pop(0)
            print(f"{time.monotonic() - self.system.installed:7.2f} s  after the installation: {milestone}", flush=True)

    def compile(self, line, language, text):
        """A part of a program."""
        name, command = {
            "c": ("part.c", "cc -Wall -Wextra -Werror -fsyntax-only part.c"),
            "python": ("part.py", "python3 -c 'compile(open(\"part.py\").read(), \"part\", \"exec\")'"),
        }[language]
        (self.system.root / "root/takt" / name).write_text(text + "\n")
        self.run(line, False, command)

    def check(self, line, text):
        path = self.system.root / "root/takt/page.toml"
        path.write_text(text + "\n")
        self.run(line, False, "takt check --config page.toml")

    def follow(self):
        found, left = blocks(self.name)
        for line, directives, language, text in found:
            kind = None
            for at, name, argument in directives:
                if name == "expect":
                    self.expect(at, argument)
                    continue
                kind = (name, argument)
            if kind is None:
                raise Fault(f"{self.at(line)}: this block is not marked: see tests/docs/run.py")
            name, argument = kind
            if name == "skip":
                if not argument:
                    raise Fault(f"{self.at(line)}: say why it is not run")
                print(f"         -  {self.at(line)}: not run: {argument}", flush=True)
                continue
            start = time.monotonic()
            if name == "check":
                self.check(line, text)
            elif name == "compile":
                self.compile(line, argument, text)
            elif name == "file":
                (self.system.root / "root/takt" / argument).write_text(text + "\n")
            else:
                text = re.sub(r"^\$ ", "", text, flags=re.M) if language == "console" else text
                (self.terminal if name == "terminal" else self.run)(line, argument == "user", text)
            self.run_blocks += 1
            print(f"{time.monotonic() - start:7.2f} s  {self.at(line)}: {text.splitlines()[0][:70]}", flush=True)
            if "apt-get install" in text:
                self.system.installed = time.monotonic()
        for at, name, argument in left:
            if name == "expect":
                self.expect(at, argument)

    def close(self):
        for shell in self.terminals + [shell for shell, _ in self.shells.values()]:
            try:
                os.killpg(shell.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            shell.wait()


# Terminal sessions that the documentation shows: title, what precedes it, and lines: whose terminal, what is typed, what must appear.
SESSIONS = [
    (
        "Two terminals, no root, no daemon",
        "The packages are installed. Both terminals belong to the same user.",
        [
            ("1 user", "takt sub weather", "are found without"),
            ("2 user", "takt pub weather hello", "1 sent"),
            ("1 user", None, "hello"),
            ("2 user", "takt pub weather --count 3 --interval 100ms", "3 sent"),
            ("1 user", None, "message 2"),
        ],
    ),
    (
        "Two nodes on one machine",
        "As root: the hosts are network namespaces.",
        [
            ("1", "takt lab up --daemons", "takt lab down"),
            ("2", "takt lab exec h2 -- takt sub weather", None),
            ("1", "takt lab exec h1 -- takt pub weather hello --wait 10s", "1 sent"),
            ("2", None, "hello"),
            ("1", "takt lab exec h1 -- takt status", "peer(s) up"),
            ("1", "takt lab exec h1 -- takt status peers", "h2"),
            ("1", "takt lab down", "removed"),
        ],
    ),
    (
        "Launch times for a program that knows nothing of Takt",
        "`listener.py` and `talker.py` are those of [launch times for any program](how-to/launch-times-for-any-program.md), in the "
        "directory where both terminals are.",
        [
            ("1", "takt lab up --daemons --containers 1", "takt lab down"),
            ("2", "takt lab exec h2c1 -- python3 listener.py", "listening"),
            ("1", "takt lab exec h1c1 -- takt preload -- python3 talker.py", None),
            ("2", None, "half of them"),
            ("2", "takt lab exec h2c1 -- python3 listener.py", "listening"),
            ("1", "takt lab exec h1c1 -- python3 talker.py", None),
            ("2", None, "half of them"),
            ("1", "takt lab exec h1 -- takt network list", "containers"),
            ("1", "takt lab down", "removed"),
        ],
    ),
]


class Terminal:
    """A terminal with a shell, into which is typed. What it shows is kept."""

    PROMPT = "\u2063"

    def __init__(self, system, user, work):
        self.name = Path(work) / f"typed-{time.monotonic_ns()}"
        self.name.touch()
        self.sign = "$" if user else "#"
        ours, theirs = pty.openpty()
        termios.tcsetwinsize(ours, (50, 100))
        threading.Thread(target=Page.copy, args=(ours, self.name), daemon=True).start()
        self.shell = system.shell(user, stdout=theirs, stderr=subprocess.STDOUT)
        os.close(theirs)
        self.shown, self.typed = 0, 0

    def type(self, line):
        # A mark tells where a command has ended.
        self.typed += 1
        self.shell.stdin.write(f"{line}\necho '{self.PROMPT}{self.typed}'\n")
        self.shell.stdin.flush()

    def said(self):
        with open(self.name) as text:
            text.seek(self.shown)
            return text.read()

    def wait(self, text):
        """What it shows until this text, or the end of the command; the whole line."""
        start = time.monotonic()
        while True:
            said = self.said()
            ended = f"{self.PROMPT}{self.typed}\n" in said
            if ended or (text and re.search(re.escape(text) + r".*\n", said)):
                break
            if time.monotonic() - start > PATIENCE:
                raise Fault(f"`{text}` does not appear, but\n{said}")
            time.sleep(0.05)
        # What belongs to it is written soon.
        time.sleep(0.3)
        said = self.said()
        if text and text not in said:
            raise Fault(f"`{text}` does not appear, but\n{said}")
        self.shown += len(said.encode())
        return re.sub(rf"\x1b\[[0-9;]*m|{self.PROMPT}\d+\n", "", said)


def record(system, work):
    """Writes docs/sessions.md: what terminals show."""
    page = [
        "# Terminal sessions",
        "",
        "What terminals show, recorded in a fresh Debian 12 that has the packages, by `make sessions`. Nothing is typed by hand or left",
        "out. What stands behind `$` was typed by an ordinary user, behind `#` by root.",
    ]
    for block in ("listener.py", "talker.py"):
        for line, directives, _, text in blocks("docs/how-to/launch-times-for-any-program.md")[0]:
            if ("file", block) in [(name, argument) for _, name, argument in directives]:
                (system.root / "root/takt" / block).write_text(text + "\n")
    for title, introduction, steps in SESSIONS:
        page += ["", f"## {title}", "", introduction]
        terminals, last = {}, None
        try:
            for whose, line, expected in steps:
                number, user = whose[0], whose.endswith("user")
                terminal = terminals.setdefault(whose, None) or Terminal(system, user, work)
                terminals[whose] = terminal
                if last != whose:
                    page += ["", f"Terminal {number}:", "", "<!-- skip: recorded by tests/docs/run.py -->", "```console"]
                else:
                    page.pop()
                if line:
                    page.append(f"{terminal.sign} {line}")
                    terminal.type(line)
                if line is None or expected is not None or "python3 talker" in line:
                    page += terminal.wait(expected).rstrip("\n").splitlines()
                page.append("```")
                last = whose
        finally:
            for terminal in terminals.values():
                os.killpg(terminal.shell.pid, signal.SIGKILL)
                terminal.shell.wait()
    (TOP / "docs/sessions.md").write_text("\n".join(page) + "\n")
    print("docs/sessions.md is written")


def links():
    """Every relative link of every page leads somewhere, and every anchor to a heading."""
    bad = []
    pages = [path for path in TOP.rglob("*.md") if not {"target", "node_modules", ".git"} & set(path.relative_to(TOP).parts)]

    def anchors(page):
        headings = re.findall(r"^#+ (.*)", re.sub(r"```.*?```", "", page.read_text(), flags=re.S), re.M)
        plain = [re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
        return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}

    for page in pages:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            if not there.exists():
                bad.append(f"{page.relative_to(TOP)}: {target} leads nowhere")
            elif anchor and there.suffix == ".md" and anchor not in anchors(there):
                bad.append(f"{page.relative_to(TOP)}: {target} leads to no heading")
    if bad:
        raise Fault("\n".join(bad))
    print(f"links: {len(pages)} pages, none dead")


def tests():
    """Every test that a page names, as `name` (`file`), is in that file; each requirement of the paper names one."""
    bad, count = [], 0
    for page in sorted((TOP / "docs").rglob("*.md")):
        for number, line in enumerate(page.read_text().split("\n"), 1):
            named = re.findall(r"`(\w+)` \(`([\w/.-]+\.(?:rs|go))`\)", line)
            count += len(named)
            for name, path in named:
                file = TOP / path
                test = rf"^func {name}\(t " if path.endswith(".go") else rf"#\[test\]\s+(#\[[^\n]*\s+)*fn {name}\("
                if not file.exists() or not re.search(test, file.read_text(), re.M):
                    bad.append(f"{page.relative_to(TOP)}:{number}: {path} has no test {name}")
            if re.match(r"\| R\d+: ", line) and not named:
                bad.append(f"{page.relative_to(TOP)}:{number}: no test is named")
    if bad:
        raise Fault("\n".join(bad))
    print(f"tests: {count} are named, all are there")


def main():
    arguments = sys.argv[1:]
    links()
    tests()
    if "--links" in arguments:
        return
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="takt-docs-") as work:
        system = System(work)
        try:
            if "--record" in arguments:
                Page(system, "packages", work).run(0, False, "apt-get install -y ./out/deb/*.deb")
                record(system, work)
                return
            pages = arguments or PAGES
            if pages[0] != "README.md":
                # The README installs the packages; other pages stand on that.
                Page(system, "packages", work).run(0, False, "apt-get install -y ./out/deb/*.deb")
                system.installed = time.monotonic()
            for name in pages:
                page = Page(system, name, work)
                try:
                    page.follow()
                finally:
                    page.close()
                print(f"{name}: {page.run_blocks} block(s) done", flush=True)
        finally:
            system.close()
            shutil.rmtree(system.root, ignore_errors=True)
    print(f"docs: everything holds, {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except Fault as fault:
        sys.exit(f"FAILED: {fault}")
