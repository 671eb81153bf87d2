"""Stamps of queueing and of departure of datagrams that leave at once, and datagrams that are too long for the interface
(`stamps.py ADDRESS MTU`)."""

import errno
import select
import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI, SO_TIMESTAMPING = 61, 11, 37
TX_SOFTWARE, SOFTWARE, OPT_ID, TX_SCHED, OPT_TSONLY = 1 << 1, 1 << 4, 1 << 7, 1 << 8, 1 << 11
PORT = 5001
COUNT = 50

address, mtu = sys.argv[1], int(sys.argv[2])
family = socket.AF_INET6 if ":" in address else socket.AF_INET
made = socket.socket(family, socket.SOCK_DGRAM)
made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))


def send(payload):
    launch = time.clock_gettime_ns(CLOCK_TAI)
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
    made.sendmsg([payload], control, 0, (address, PORT))


longest = mtu - (48 if ":" in address else 28)
send(bytes(longest))
try:
    send(bytes(longest + 1))
    sys.exit("longer than the interface allows")
except OSError as error:
    assert error.errno == errno.EMSGSIZE, error

stamping = TX_SOFTWARE | SOFTWARE | OPT_ID | TX_SCHED | OPT_TSONLY
made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("i", stamping))
stamps = {}
poll = select.poll()
poll.register(made, 0)
for _ in range(COUNT):
    send(b"at once")
while len(stamps) < 2 * COUNT:
    poll.poll()
    _, control, _, _ = made.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPING):
            seconds, nanoseconds = struct.unpack("qq", data[:16])
        else:
            _, _, _, _, _, which, number = struct.unpack("IBBBBII", data[:16])
    stamps[(number, which)] = seconds * 1_000_000_000 + nanoseconds
for number in range(COUNT):
    queued, left = stamps[(number, 1)], stamps[(number, 0)]
    assert queued <= left, (number, queued, left)
print("in order")
