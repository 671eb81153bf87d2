"""Datagrams that wait for a next hop (`held.py ADDRESS WAY`). WAY is how the socket ends that has them, or `stamp`: then they are
told of by a wait that has begun while all of them waited. With `dup` and `stays`, the descriptor that was used last is closed, and the
socket is open by another one until the program ends, or for ever. With `no program`, it stays open, and what is to be executed is none.
With `child`, a forked child has made them, by a socket of its parent's."""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import time

SO_TXTIME, CLOCK_TAI = 61, 11
SO_TIMESTAMPING, TX_SOFTWARE, SOFTWARE, TSONLY = 37, 1 << 1, 1 << 4, 1 << 11
PORT = 5001

address, way = sys.argv[1:]
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
if way == "stamp":
    # Which datagrams are stamped, each says itself.
    made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("I", SOFTWARE | TSONLY))
if way == "child":
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
later = way in ["stays", "no program"]
launch = time.clock_gettime_ns(CLOCK_TAI) + (10_000_000_000 if later else 600_000_000)
latest = made.dup() if way in ["dup", "stays"] else made
for number in range(3):
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch + number))]
    if way == "stamp":
        control.append((socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("I", TX_SOFTWARE)))
    latest.sendmsg([struct.pack("q", launch + number), b"held %d" % number], control, 0, (address, PORT))

if way == "stamp":
    poll = select.poll()
    poll.register(made, 0)
    assert poll.poll(60_000), "nobody told of it"
    _, control, _, _ = made.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
    print("stamped")
elif way == "close":
    made.close()
elif way in ["dup", "stays"]:
    latest.close()
    print("closed", flush=True)
    if way == "stays":
        signal.pause()
elif way == "dup2":
    os.dup2(0, made.fileno())
elif way == "close_range":
    ctypes.CDLL(None).close_range(made.fileno(), made.fileno(), 0)
elif way == "exec":
    os.execvp("true", ["true"])
elif way == "failing exec":
    # It is no program of any kind.
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(b"\x7fnothing")
    os.chmod(file.name, 0o700)
    try:
        os.execv(file.name, [file.name])
    except OSError as error:
        assert error.errno == errno.ENOEXEC, error
    finally:
        os.remove(file.name)
elif way == "no program":
    for execute, name in [(os.execv, "/tmp"), (os.execvp, "")]:
        try:
            execute(name, ["none"])
        except OSError as error:
            assert error.errno in [errno.EACCES, errno.ENOENT], error
    print("stays", flush=True)
    signal.pause()
elif way == "_exit":
    sys.stdout.flush()
    os._exit(0)
else:
    assert way in ["exit", "child"], way
