"""Keeps views of a message and of a buffer that it has given back, waits in a task while the runtime is away, and reads them when it has
come back."""
import asyncio
import sys
import takt


async def wait(source: takt.Source, sink: takt.Sink) -> None:
    while True:
        # The session sees that the runtime is away.
        try:
            await sink.receive_async()
        except takt.Disconnected:
            break
    task = asyncio.ensure_future(sink.receive_async())
    for _ in range(1000):
        await asyncio.sleep(0)
    print("fails" if task.done() else "waits", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    while not task.done():
        try:
            source.send(b"again", 0)
        except (takt.Disconnected, takt.WouldBlock):
            pass
        await asyncio.sleep(0)
    with await task as message:
        assert bytes(message) == b"again"


with takt.Session(name="views") as session, session.stream() as stream, stream.source(8) as source, stream.sink(8) as sink:
    with source.buffer(5) as buffer:
        buffer.data[:] = b"hello"
        sent = buffer.data[:]
    with sink.receive() as message:
        received = message.data[:]
    del buffer, message
    print("ready", flush=True)
    asyncio.run(wait(source, sink))
    print("read", len(bytes(sent)), len(bytes(received)), flush=True)
