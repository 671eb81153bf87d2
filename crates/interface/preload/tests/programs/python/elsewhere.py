"""Timed datagrams of a socket in another network namespace than the first one that had times (`elsewhere.py NAMESPACE ADDRESS`): the
next hop is not known there, and what is refused for that is sent again."""

import ctypes
import errno
import os
import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI, CLONE_NEWNET = 61, 11, 0x40000000
PORT = 5001


def timed():
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
    return made


namespace, address = sys.argv[1:]
first = timed()
entered = ctypes.CDLL(None, use_errno=True).setns(os.open(namespace, os.O_RDONLY), CLONE_NEWNET)
assert entered == 0, os.strerror(ctypes.get_errno())
made = timed()
for number in range(3):
    while True:
        launch = time.clock_gettime_ns(CLOCK_TAI) + 20_000_000
        control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
        try:
            made.sendmsg([struct.pack("q", launch), b"elsewhere %d" % number], control, 0, (address, PORT))
            break
        except OSError as error:
            if error.errno != errno.EHOSTUNREACH:
                raise
            time.sleep(0.02)
