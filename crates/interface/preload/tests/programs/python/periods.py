"""A datagram in each of four periods, to a station whose hardware address nobody knows yet (`periods.py ADDRESS`): of class 5, each some time after
the one before it, all of them long before they are to leave."""

import socket
import struct
import sys
import time

SO_TXTIME, SO_PRIORITY, CLOCK_TAI, PERIOD = 61, 12, 11, 100_000_000

made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.setsockopt(socket.SOL_SOCKET, SO_PRIORITY, 5)
made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
first = (time.clock_gettime_ns(CLOCK_TAI) // PERIOD + 20) * PERIOD
for number in range(4):
    launch = first + number * PERIOD
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
    made.sendmsg([struct.pack("q", launch), b"period %d" % number], control, 0, (sys.argv[1], 5001))
    time.sleep(0.05)
# Not at its end, when all that waits is handed over.
time.sleep(2)
