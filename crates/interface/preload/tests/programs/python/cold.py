"""The first datagrams to a station whose hardware address nobody knows yet (`cold.py ADDRESS CLOSING`): each with a launch time.
Then one to a station that does not exist, and what the error queue says of it. CLOSING is 1 for a socket that is closed at once."""

import errno
import select
import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI, REPORT_ERRORS = 61, 11, 2
PORT = 5001


def timed(family):
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, REPORT_ERRORS))
    return made


def send(made, address, ahead, text):
    launch = time.clock_gettime_ns(CLOCK_TAI) + ahead
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
    made.sendmsg([struct.pack("q", launch), text], control, 0, (address, PORT))
    return launch


address, closing = sys.argv[1], sys.argv[2] == "1"
family = socket.AF_INET6 if ":" in address else socket.AF_INET
made = timed(family)
for number in range(3):
    try:
        send(made, address, 600_000_000 + number * 1_000_000, b"cold %d" % number)
    except OSError as error:
        # Where it is refused, the way may be known by then.
        if error.errno != errno.EHOSTUNREACH:
            raise
if closing:
    made.close()
    sys.exit()

absent = "fd88::77" if ":" in address else address.rsplit(".", 1)[0] + ".253"
launch = send(made, absent, 100_000_000, b"nobody")
poll = select.poll()
poll.register(made, 0)
while True:
    poll.poll()
    packet, control, _, _ = made.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
    errors = [data for level, kind, data in control if level != socket.SOL_SOCKET]
    number, origin, _, code, _, info, upper = struct.unpack("IBBBBII", errors[0][:16])
    if origin == 6:
        break
assert (number, code) == (125, 2), (number, code)
assert upper << 32 | info == launch
# From the Ethernet header on, with the source's hardware address and addresses of IP.
ethertype, length = (b"\x86\xdd", 14 + 40 + 8) if family == socket.AF_INET6 else (b"\x08\x00", 14 + 20 + 8)
assert packet[6:12] != bytes(6) and packet[12:14] == ethertype, packet
assert packet[length:] == struct.pack("q", launch) + b"nobody", packet
assert socket.inet_pton(family, absent) in packet[:length], packet
print("missed")
