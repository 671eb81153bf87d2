"""Datagrams of a program that knows nothing of launch times (`publisher.py ADDRESS PORT COUNT WAY`): each has its number and the
instant before it was sent, by CLOCK_TAI. With `missed`, the error queue tells at which launch times they were to leave."""

import os
import select
import signal
import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI, REPORT_ERRORS = 61, 11, 2

address, port, count, way = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
to = (address, port)
if way == "missed":
    made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, REPORT_ERRORS))
elif way not in ["sendto", "sendmsg"]:
    made.connect(to)
for number in range(count):
    payload = struct.pack("qq", number, time.clock_gettime_ns(CLOCK_TAI))
    if way in ["sendto", "missed"]:
        sent = made.sendto(payload, to)
    elif way == "sendmsg":
        sent = made.sendmsg([payload[:3], payload[3:]], [], 0, to)
    elif way == "send":
        sent = made.send(payload)
    elif way == "long":
        payload = payload.ljust(20_000, b".")
        sent = made.send(payload)
    elif way == "write":
        sent = os.write(made.fileno(), payload)
    else:
        assert way == "writev", way
        sent = os.writev(made.fileno(), [payload[:9], payload[9:]])
    assert sent == len(payload)
    time.sleep(0.013)
print("sent", flush=True)

if way == "missed":
    poll = select.poll()
    poll.register(made, 0)
    for _ in range(count):
        assert poll.poll(60_000), "nobody told of it"
        _, control, _, _ = made.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
        for _, _, data in control:
            _, origin, _, _, _, low, high = struct.unpack("IBBBBII", data[:16])
            if origin == 6:
                print(high << 32 | low, flush=True)
