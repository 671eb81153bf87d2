"""A socket that is bound to an address and gets its port with the first datagram (`bound.py ADDRESS OWN`): what it has then."""

import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI, IP_BIND_ADDRESS_NO_PORT = 61, 11, 24
PORT = 5001

address, own = sys.argv[1:]
made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
made.setsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
made.bind((own, 0))
made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
launch = time.clock_gettime_ns(CLOCK_TAI) + 20_000_000
control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
made.sendmsg([struct.pack("q", launch), b"bound"], control, 0, (address, PORT))
assert made.getsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT) == 1
print(*made.getsockname()[:2])
