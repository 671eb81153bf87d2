"""Streams of frames at a real runtime, the one that $TAKT_SOCKET names, and at a peer of it ($TAKT_TEST_FAR_SOCKET)."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import unittest

import takt
from takt.streams import Client, EndOfStream, Format, Pixels, Server
from takt.topics import Participant
from waiting import PATIENCE, waits_end

FORMAT = Format(Pixels.RGB, 64, 48)
BYTES = 64 * 48 * 3


def picture(number: int) -> bytes:
    return bytes((at * 31 + number * 7) % 251 for at in range(BYTES))


class Streams(unittest.TestCase):
    def setUp(self) -> None:
        self.camera = Participant(takt.Session(name="camera"))
        self.viewer = Participant(takt.Session(os.environ["TAKT_TEST_FAR_SOCKET"], name="viewer"))

    def test_what_the_library_would_cut_is_refused(self) -> None:
        for refused in (
            lambda: Server(self.camera, "py/a\0b", Format(Pixels.RGB, 64, 48)),
            lambda: Server(self.camera, "py/cut", Format(Pixels.RGB, 2**32 + 64, 48)),
            lambda: Server(self.camera, "py/cut", Format(Pixels.RGB, 64, 48), slice=2**32),
            lambda: Client(self.camera, "py/cut", frames=2**32 + 5),
        ):
            with self.assertRaises(takt.InvalidArgument):
                refused()

    def test_frames_arrive_whole_and_in_order_until_the_end(self) -> None:
        client = Client(self.viewer, "py/camera", all=True)
        server = Server(self.camera, "py/camera", FORMAT, period=0.02, slice=1000, reliable=True)
        self.assertGreaterEqual(server.wait_client(PATIENCE), 1)
        numbers = [server.send(bytearray(picture(number)), PATIENCE) for number in range(3)]
        self.assertEqual(numbers, [0, 1, 2])
        for number in range(3):
            with client.receive(PATIENCE) as frame:
                self.assertEqual((frame.number, frame.format, frame.holes), (number, FORMAT, []))
                self.assertEqual(bytes(frame), picture(number))
                self.assertEqual(frame.period, 0.02)
                self.assertGreater(frame.completed_ns, frame.captured_ns)
        server.set_format(Format(Pixels.BYTES, 5, 1))
        server.send(b"bytes", captured_ns=7)
        server.close()
        with client.receive(PATIENCE) as frame:
            self.assertEqual((bytes(frame), frame.captured_ns), (b"bytes", 7))
        with self.assertRaises(EndOfStream):
            client.receive(PATIENCE)
        with self.assertRaises(takt.WouldBlock):
            client.receive(0)
        counters = client.counters
        self.assertEqual((counters.frames, counters.incomplete, counters.slices.malformed), (4, 0, 0))

    def test_a_frame_that_does_not_fit_the_memory_is_passed_over_and_counted(self) -> None:
        client = Client(self.viewer, "py/memory", all=True, memory=BYTES - 1)
        server = Server(self.camera, "py/memory", FORMAT, reliable=True)
        server.wait_client(PATIENCE)
        server.send(picture(0))
        server.set_format(Format(Pixels.BYTES, 5, 1))
        server.send(b"bytes")
        with client.receive(PATIENCE) as frame:
            self.assertEqual((frame.number, bytes(frame)), (1, b"bytes"))
        while (counters := client.counters).no_memory == 0:
            time.sleep(0.001)  # It may be shown after the frame.
        self.assertEqual((counters.frames, counters.no_memory, counters.skipped), (1, 1, 0))
        self.assertEqual(counters.slices.malformed, 0)

    def test_an_event_loop_and_iterators_take_frames(self) -> None:
        client = Client(self.viewer, "py/loop", all=True)
        server = Server(self.camera, "py/loop", FORMAT, reliable=True)
        server.wait_client(PATIENCE)

        async def take() -> list[int]:
            return [frame.number async for frame in client]

        async def run() -> list[int]:
            task = asyncio.ensure_future(take())
            for number in range(3):
                server.send(picture(number))
                await asyncio.sleep(0)
            server.close()
            return await asyncio.wait_for(task, PATIENCE)

        self.assertEqual(asyncio.run(run()), [0, 1, 2])
        again = Server(self.camera, "py/loop", FORMAT, reliable=True)
        again.wait_client(PATIENCE)
        again.send(picture(0))
        again.close()
        self.assertEqual([frame.number for frame in client], [0])

    def test_waits_of_tasks_end_when_it_is_closed_or_woken(self) -> None:
        client = Client(self.viewer, "py/closed")
        asyncio.run(waits_end(self, client, client.receive_async))

    def test_tasks_that_wait_at_once_share_what_comes(self) -> None:
        async def run() -> None:
            client = Client(self.viewer, "py/shared", all=True)
            server = Server(self.camera, "py/shared", FORMAT, reliable=True)
            server.wait_client(PATIENCE)
            tasks = [asyncio.ensure_future(client.receive_async()) for _ in range(3)]
            await asyncio.sleep(0)
            for number in range(3):
                server.send(picture(number))
                await asyncio.wait(tasks, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            ended, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
            self.assertEqual(waiting, set())
            self.assertEqual(sorted(task.result().number for task in ended), [0, 1, 2])

        asyncio.run(run())

    def test_waits_end_and_what_is_wrong_is_told(self) -> None:
        client = Client(self.viewer, "py/wait")
        with self.assertRaises(takt.TimedOut):
            client.receive(0.01)
        threading.Timer(0.01, client.wake).start()
        with self.assertRaises(takt.Interrupted):
            client.receive(PATIENCE)
        with self.assertRaisesRegex(takt.InvalidArgument, "an even width"):
            Server(self.camera, "py/wait", Format(Pixels.UYVY, 3, 1))
        with self.assertRaisesRegex(takt.InvalidArgument, "only over a known period"):
            Server(self.camera, "py/wait", FORMAT, spread=True)
        with self.assertRaisesRegex(takt.InvalidArgument, "write the name of one"):
            Client(self.viewer, "py/*")
        with self.assertRaisesRegex(takt.InvalidArgument, "`memory` is -1"):
            Client(self.viewer, "py/wait", memory=-1)
        server = Server(self.camera, "py/wait", FORMAT)
        with self.assertRaisesRegex(takt.InvalidArgument, "which has 9216"):
            server.send(b"short")
        server.close()
        with self.assertRaises(takt.Closed):
            server.send(picture(0))


if __name__ == "__main__":
    unittest.main()
