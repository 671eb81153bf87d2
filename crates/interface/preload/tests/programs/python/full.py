"""A runtime that has stopped (`full.py SOCKET`): it listens, accepts nobody, and has no room for further connections."""

import signal
import socket
import sys

KIND = socket.SOCK_SEQPACKET
listener = socket.socket(socket.AF_UNIX, KIND)
listener.bind(sys.argv[1])
listener.listen(0)
connections = []
while True:
    connections.append(socket.socket(socket.AF_UNIX, KIND))
    connections[-1].setblocking(False)
    try:
        connections[-1].connect(sys.argv[1])
    except BlockingIOError:
        break
print("full", flush=True)
signal.pause()
