"""Sends messages of 16 MiB on channel 7, each a number, its digest and bytes that depend on it; asked on standard input."""
import hashlib, os, signal, struct, sys, time
import takt

# Who runs this in the background may have it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

SIZE = 16 << 20


def send(source, number):
    with source.buffer(SIZE, 60) as buffer:
        rest = struct.pack("<Q", number) * ((SIZE - 40) // 8)
        buffer.data[40:] = rest
        buffer.data[:40] = struct.pack("<Q", number) + hashlib.sha256(rest).digest()
        return buffer.emit()


def fork(session, source):
    """A child does not send for its parent, but may for itself."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            source.send(b"")
            os._exit(1)
        except takt.Error:
            pass
        with takt.Session(name="child", tx_bytes=64 << 20) as own, own.stream(reliable=True).source(7) as mine:
            mine.wait_reader(60)
            send(mine, 1000)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


with takt.Session(name="writer", tx_bytes=64 << 20) as session, session.stream(reliable=True).source(7) as source:
    source.wait_reader(60)
    print("ready", flush=True)
    for line in sys.stdin:
        word, *numbers = line.split()
        if word == "fork":
            print("forked", fork(session, source), flush=True)
            continue
        for number in range(*map(int, numbers)):
            while True:
                try:
                    token = send(source, number)
                    break
                except takt.Disconnected:
                    # It attaches again when the daemon is back.
                    time.sleep(0.01)
        while source.outcome(token) == takt.Outcome.PENDING:
            time.sleep(0.001)
        print("sent", source.outcome(token).name, flush=True)
