"""Datagrams with a launch time that the runtime does not send, each for a reason of its own (`unserved.py ADDRESS OWN STATION`):
what each call says."""

import errno
import fcntl
import socket
import struct
import sys
import time

SO_TXTIME, CLOCK_TAI = 61, 11
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
UDP_CORK, UDP_SEGMENT = 1, 103
IP_UNICAST_IF, IP_PKTINFO, IP_OPTIONS = 50, 8, 4
SO_BINDTODEVICE = 25
IP_RETOPTS = 7
PORT = 5001
GROUP = "239.1.2.3"
GROUP_SIX = "ff05::99"

address, own, station = sys.argv[1:]
OTHER = "192.0.2.1"


def timed(family=socket.AF_INET, kind=socket.SOCK_DGRAM, clock=CLOCK_TAI):
    made = socket.socket(family, kind)
    made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", clock, 0))
    return made


def send(made, to=None, more=(), flags=0, payload=None):
    launch = time.clock_gettime_ns(CLOCK_TAI) + 200_000_000
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch)), *more]
    made.sendmsg([payload or struct.pack("q", launch) + b"early"], control, flags, to or (address, PORT))


def foreign_source():
    made = timed()
    made.bind(("10.99.0.9", 0))
    send(made)


def foreign_source_of_one():
    information = struct.pack("I4s4s", 0, socket.inet_aton("10.99.0.9"), bytes(4))
    send(timed(), more=[(socket.SOL_IP, IP_PKTINFO, information)])


def other_interface_for_groups():
    made = timed()
    made.setsockopt(socket.SOL_IP, socket.IP_MULTICAST_IF, socket.inet_aton(OTHER))
    send(made, (GROUP, PORT))


def other_interface_for_groups_by_number():
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    number = socket.if_nametoindex("other")
    made.setsockopt(socket.SOL_IP, socket.IP_MULTICAST_IF, struct.pack("4s4si", bytes(4), bytes(4), number))
    made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
    send(made, (GROUP, PORT))


def other_interface_for_stations():
    made = timed()
    made.setsockopt(socket.SOL_IP, IP_UNICAST_IF, struct.pack("!i", socket.if_nametoindex("other")))
    send(made)


def other_interface_bound():
    made = timed()
    made.setsockopt(socket.SOL_SOCKET, SO_BINDTODEVICE, b"other\0")
    send(made)


def other_interface_of_one():
    information = struct.pack("I4s4s", socket.if_nametoindex("other"), bytes(4), bytes(4))
    send(timed(), more=[(socket.SOL_IP, IP_PKTINFO, information)])


def loopback():
    send(timed(), ("127.0.0.1", PORT))


def own_address():
    send(timed(), (own, PORT))


def members_here():
    made = timed()
    made.setsockopt(socket.SOL_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
    made.setsockopt(socket.SOL_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP) + socket.inet_aton(own))
    send(made, (GROUP, PORT))


def members_here_of_six():
    made = timed(socket.AF_INET6)
    number = socket.if_nametoindex("eth0")
    group = socket.inet_pton(socket.AF_INET6, GROUP_SIX)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, number)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, group + struct.pack("i", number))
    send(made, (GROUP_SIX, PORT))


def unknown_control():
    send(timed(), more=[(socket.SOL_UDP if hasattr(socket, "SOL_UDP") else 17, UDP_SEGMENT, struct.pack("H", 1000))])


def zero_copy():
    made = timed()
    made.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    send(made, flags=MSG_ZEROCOPY)


def corked_flag():
    made = timed()
    made.connect((address, PORT))
    send(made, flags=socket.MSG_MORE)


def corked():
    made = timed()
    made.setsockopt(17, UDP_CORK, 1)
    send(made)


def segmented():
    made = timed()
    made.setsockopt(17, UDP_SEGMENT, 1000)
    send(made)


def options():
    made = timed()
    made.setsockopt(socket.SOL_IP, IP_OPTIONS, b"\x01\x01\x01\x01")
    send(made)


def frame(kind, source=None):
    made = timed(socket.AF_PACKET, socket.SOCK_RAW)
    name = struct.pack("16s24x", b"eth0")
    mac = fcntl.ioctl(made, 0x8927, name)[18:24]
    payload = bytes.fromhex(station.replace(":", "")) + (source or mac) + kind + bytes(60)
    send(made, ("eth0", 0), payload=payload)


def tagged():
    frame(b"\x81\x00\x00\x05\x08\x00")


def speaks_for_others():
    frame(b"\x08\x06")


def foreign_station():
    frame(b"\x88\xf7", bytes.fromhex("020000000099"))


def stream():
    made = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_UDP)
    made.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, 0))
    send(made, ("::1", 0))


for case in [
    foreign_source,
    foreign_source_of_one,
    other_interface_for_groups,
    other_interface_for_groups_by_number,
    other_interface_for_stations,
    other_interface_bound,
    other_interface_of_one,
    loopback,
    own_address,
    members_here,
    members_here_of_six,
    unknown_control,
    zero_copy,
    corked_flag,
    corked,
    segmented,
    options,
    tagged,
    speaks_for_others,
    foreign_station,
    stream,
]:
    try:
        case()
        print(case.__name__, "sent")
    except OSError as error:
        print(case.__name__, errno.errorcode[error.errno])
