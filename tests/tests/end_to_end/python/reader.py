"""Says which messages of writer.py have come whole, until Ctrl-C."""
import hashlib, signal, struct
import takt

# Who runs this in the background may have it ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

with takt.Session(name="reader", rx_bytes=128 << 20) as session, session.stream().sink(7) as sink:
    print("ready", flush=True)
    try:
        while True:
            try:
                with sink.receive() as message:
                    number = struct.unpack("<Q", message.data[:8])[0]
                    whole = len(message) == 16 << 20 and hashlib.sha256(message.data[40:]).digest() == message.data[8:40]
                print("got", number, whole, flush=True)
            except takt.Disconnected:
                print("disconnected", flush=True)
    except KeyboardInterrupt:
        counters = sink.counters
        print("lost", counters.lost + counters.dropped_full + counters.dropped_memory, flush=True)
