"""Datagrams for a group, by the interface that is set for groups (`group.py GROUP WAY OWN`): by its address, or by its number."""

import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI = 61, 11
PORT = 5001

group, way, own = sys.argv[1:]
six = ":" in group
made = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM)
number = socket.if_nametoindex("eth0")
if six:
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, number)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 2)
elif way == "address":
    made.setsockopt(socket.SOL_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
else:
    made.setsockopt(socket.SOL_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", bytes(4), bytes(4), number))
made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
for number in range(3):
    launch = time.clock_gettime_ns(CLOCK_TAI) + 20_000_000
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
    made.sendmsg([struct.pack("q", launch), b"%s %d" % (way.encode(), number)], control, 0, (group, PORT))
