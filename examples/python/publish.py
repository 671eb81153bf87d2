"""Publishes a temperature on channel 7, ten times a second, until it is stopped."""
import math, struct, time
import takt

with takt.Session() as session, session.stream().source(7) as source:
    step = 0
    while True:
        try:
            source.send(struct.pack("d", 20 + 5 * math.sin(step / 50)))
        except takt.Disconnected:
            pass  # The session attaches again when the daemon is back.
        step += 1
        time.sleep(0.1)
