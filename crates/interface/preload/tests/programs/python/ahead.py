"""Ten datagrams of class 3 far ahead of their time (`ahead.py ADDRESS SECONDS`), then waits for what the error queue says of
them; a last datagram without a time."""

import select
import socket
import struct
import sys
import time

SO_TXTIME = 61
CLOCK_TAI = 11
REPORT_ERRORS = 2
ECANCELED, ORIGIN_TXTIME, MISSED = 125, 6, 2
PORT = 5001
COUNT = 10


def main() -> None:
    address, seconds = sys.argv[1], int(sys.argv[2])
    talker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    talker.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, REPORT_ERRORS))
    talker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 3)
    launch = time.clock_gettime_ns(CLOCK_TAI) + seconds * 1_000_000_000
    control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
    for _ in range(COUNT):
        talker.sendmsg([struct.pack("q", launch), b"ahead"], control, 0, (address, PORT))
    print("sent", flush=True)

    poll = select.poll()
    poll.register(talker, 0)
    missed = 0
    while missed < COUNT:
        poll.poll()
        _, ancillary, _, _ = talker.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
        for _, _, data in ancillary:
            errno, origin, _, code, _, info, upper = struct.unpack("IBBBBII", data[:16])
            assert (errno, origin, code) == (ECANCELED, ORIGIN_TXTIME, MISSED), data
            assert upper << 32 | info == launch, data
            missed += 1
    talker.sendto(b"without", (address, PORT))
    print(f"{missed} missed")


main()
