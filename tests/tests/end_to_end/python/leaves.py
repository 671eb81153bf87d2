"""Waits for messages in a session that does not look for a runtime that has gone: it is told so, each time."""
import takt

with takt.Session(name="leaves", reconnect=False) as session, session.stream().sink(7) as sink:
    print("ready", flush=True)
    for _ in range(2):
        try:
            sink.receive()
        except takt.Disconnected:
            print("disconnected", flush=True)
