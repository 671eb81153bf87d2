"""The far end that `isochron send` asks how it is, in the place of `isochron rcv`, which wants a PTP clock.

Its management protocol over TCP: a header (version, action, length), one element (type, what, length), a value.
"""

import socket
import struct

VERSION, GET, SET, RESPONSE = 2, 0, 1, 2
LOG, LINK_STATE = 0, 42
VALUES = {
    LINK_STATE: bytes([2, 0, 0, 0]),  # it runs
    LOG: struct.pack("!II", 4, 32) + bytes(32),  # its fourth form, with an entry of nothing
}

listener = socket.create_server(("0.0.0.0", 5000))
print("ready", flush=True)
peer, _ = listener.accept()
while header := peer.recv(8, socket.MSG_WAITALL):
    version, action, _, length = struct.unpack("!BBHI", header)
    assert version == VERSION and action in (GET, SET), header
    element = peer.recv(length, socket.MSG_WAITALL)
    kind, what, _ = struct.unpack("!HHI", element[:8])
    value = VALUES[what] if action == GET else element[8:]
    header = struct.pack("!BBHIHHI", VERSION, RESPONSE, 0, 8 + len(value), kind, what, len(value))
    peer.sendall(header + value)
