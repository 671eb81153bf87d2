"""Prints the temperatures on channel 7 with the time each has taken; `subscribe.py N` stops after N."""
import itertools, struct, sys, time
import takt

with takt.Session() as session, session.stream().sink(7) as sink:
    for message in itertools.islice(sink, int(sys.argv[1]) if len(sys.argv) > 1 else None):
        age = time.clock_gettime_ns(time.CLOCK_TAI) - message.send_time_ns
        print(f"{struct.unpack('d', message.data)[0]:.2f} degrees, {age} ns old", flush=True)
