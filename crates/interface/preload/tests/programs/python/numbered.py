"""Numbers of time stamps (`numbered.py ABSENT BEYOND`): behind a datagram that waits for a next hop in vain, of two with times that wait
for one which turns out to be beyond the runtime, and of one without a time."""

import select
import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI = 61, 11
SO_TIMESTAMPING, TX_SOFTWARE, SOFTWARE, OPT_ID, TSONLY = 37, 1 << 1, 1 << 4, 1 << 7, 1 << 11
PORT = 5001

absent, beyond = sys.argv[1:]
made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
made.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("I", TX_SOFTWARE | SOFTWARE | OPT_ID | TSONLY))


def send(to):
    launch = time.clock_gettime_ns(CLOCK_TAI) + 20_000_000
    made.sendmsg([b"timed"], [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))], 0, (to, PORT))


def stamp():
    poll = select.poll()
    poll.register(made, 0)
    while True:
        assert poll.poll(60_000), "nobody told of it"
        _, control, _, _ = made.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
        errors = [data for level, _, data in control if level != socket.SOL_SOCKET]
        _, origin, _, _, _, _, number = struct.unpack("IBBBBII", errors[0][:16])
        if origin == 4:
            return number


send(absent)
send(beyond)
send(beyond)
numbers = [stamp(), stamp()]
made.sendto(b"untimed", (beyond, PORT))
numbers.append(stamp())
print(*numbers)
