"""A datagram every 5 ms, 50 ms ahead, until it is killed (`stubborn.py ADDRESS`). What is refused is left out."""

import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI = 61, 11
PORT = 5001

made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
while True:
    launch = time.clock_gettime_ns(CLOCK_TAI) + 50_000_000
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
    try:
        made.sendmsg([struct.pack("q", launch), b"again"], control, 0, (sys.argv[1], PORT))
    except OSError:
        pass
    time.sleep(0.005)
