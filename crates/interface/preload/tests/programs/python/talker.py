"""A talker as a Python programmer writes it: a cycle of 5 ms, launch times, stamps and errors."""

import select
import socket
import struct
import sys
import time

SO_TXTIME = 61
CLOCK_TAI = 11
REPORT_ERRORS = 2
SO_TIMESTAMPING = 37
TX_SOFTWARE, SOFTWARE, OPT_ID, OPT_TSONLY = 1 << 1, 1 << 4, 1 << 7, 1 << 11
ORIGIN_TIMESTAMPING, ORIGIN_TXTIME = 4, 6
PORT = 5001
CYCLE = 5_000_000


def main() -> None:
    address = sys.argv[1]
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    talker = socket.socket(family, socket.SOCK_DGRAM)
    talker.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, 5)
    talker.setsockopt(socket.SOL_SOCKET, SO_TXTIME, struct.pack("iI", CLOCK_TAI, REPORT_ERRORS))
    stamping = TX_SOFTWARE | SOFTWARE | OPT_ID | OPT_TSONLY
    talker.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, struct.pack("i", stamping))
    talker.setblocking(False)

    def send(launch: int, text: str) -> None:
        control = [(socket.SOL_SOCKET, SO_TXTIME, struct.pack("Q", launch))]
        parts = [struct.pack("q", launch), text.encode()]
        talker.sendmsg(parts, control, 0, (address, PORT))

    # Time for the first next hop to be resolved on a busy machine.
    base = time.clock_gettime_ns(CLOCK_TAI) + 40 * CYCLE
    send(base - 2_000_000_000, "too late")
    for number in range(20):
        send(base + number * CYCLE, f"cycle {number}")

    poll = select.poll()
    poll.register(talker, 0)
    numbers, errors = set(), 0
    # Every datagram is told of, one way or the other.
    while len(numbers) + errors < 21:
        poll.poll()
        _, control, flags, _ = talker.recvmsg(2048, 512, socket.MSG_ERRQUEUE)
        assert flags & socket.MSG_ERRQUEUE
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPING:
                continue
            errno, origin, _, code, _, info, number = struct.unpack("IBBBBII", data[:16])
            if origin == ORIGIN_TIMESTAMPING:
                # The late one has number 0.
                numbers.add(number)
            else:
                assert (origin, errno, code) == (ORIGIN_TXTIME, 22, 1), data
                errors += 1
    assert numbers <= set(range(1, 21)), numbers
    print(f"{len(numbers)} stamps, {errors} error")


main()
