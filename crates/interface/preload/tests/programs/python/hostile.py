"""Floods with times that make no sense, in a class that is allowed and in one that is not, until it is killed:
`hostile.py ADDRESS`."""

import socket
import struct
import sys
import time

SO_TXTIME = 61
CLOCK_TAI = 11
# Nobody listens there.
PORT = 5002
SECOND = 1_000_000_000
YEAR_2300 = 10_413_792_000 * SECOND


def main() -> None:
    address = sys.argv[1]
    sockets = []
    for priority in 5, 7:
        talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        talker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, priority)
        talker.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
        talker.setblocking(False)
        sockets.append(talker)
    while True:
        now = time.clock_gettime_ns(CLOCK_TAI)
        # All equal within a second; and as far ahead as the runtime takes.
        equal = now // SECOND * SECOND + SECOND
        for launch in equal, YEAR_2300, -1, -(1 << 63), 0, now - SECOND, now + 59 * SECOND, now + 3600 * SECOND:
            for talker in sockets:
                control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch % (1 << 64)))]
                for _ in range(20):
                    try:
                        talker.sendmsg([b"flood" * 100], control, 0, (address, PORT))
                    except BlockingIOError:
                        break


main()
