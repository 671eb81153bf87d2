"""What views of messages show, what becomes of their memory, and who may end a wait, at the runtime that $TAKT_SOCKET names."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import unittest
from collections.abc import Callable
from typing import Any

import takt
from takt.streams import Client, Format, Pixels, Server
from takt.topics import Participant
from waiting import PATIENCE


class Raised(Exception):
    """By a signal's handler."""


def array(data: memoryview) -> Any:
    """What NumPy makes of `data`: it refers to the memory, and not to the message."""
    return memoryview(data)


def run(code: str) -> "subprocess.CompletedProcess[str]":
    """What becomes of a program: it may crash."""
    ready = "import os, signal, sys, threading, takt\n"
    return subprocess.run([sys.executable, "-c", ready + code], capture_output=True, text=True, timeout=PATIENCE)


class Memory(unittest.TestCase):
    def setUp(self) -> None:
        self.session = takt.Session(name="test")
        self.addCleanup(self.session.close)
        self.stream = self.session.stream()

    def test_a_view_keeps_its_message_until_it_is_released(self) -> None:
        other = takt.Session()
        self.addCleanup(other.close)
        source = other.stream(reliable=True, slow_sinks=takt.SlowSinks.WAIT).source(50)
        with self.stream.sink(50, depth=4) as sink, source:
            views = []
            for number in range(4):
                source.send(bytes([number]) * 1000, PATIENCE)
                views.append(array(sink.receive(PATIENCE).data))
            gc.collect()
            self.assertEqual([bytes(view) for view in views], [bytes([number]) * 1000 for number in range(4)])
            views.clear()
            # The memory is there for others: more than the depth.
            for number in range(8):
                source.send(bytes([number]), PATIENCE)
                self.assertEqual(bytes(array(sink.receive(PATIENCE).data)), bytes([number]))

    def test_views_that_end_in_other_threads_give_their_memory_back(self) -> None:
        with self.stream.source(51, depth=1) as source:
            for _ in range(3):
                views = [source.buffer(1, PATIENCE).data[:]]
                thread = threading.Thread(target=views.clear)
                thread.start()
                thread.join()
                gc.collect()

    def test_a_view_of_memory_that_is_not_there_any_more_can_be_read(self) -> None:
        # Of a session whose memory is another's too: it ends with the session where nothing keeps it.
        other = takt.Session()
        with self.stream.sink(52) as sink, other.stream().source(52) as source:
            source.send(b"hello")
            message = sink.receive(PATIENCE)
            view = message.data[:]
            message.release()
            buffer = source.buffer(5)
            sent = buffer.data[:]
            buffer.emit()
        del source, buffer, message
        other.close()
        del other
        gc.collect()
        self.assertEqual((len(bytes(view)), len(bytes(sent))), (5, 5))

    def test_a_view_of_a_frame_keeps_it(self) -> None:
        with Participant(self.session) as participant:
            client = Client(participant, "py/view", all=True, frames=1, memory=10)
            server = Server(participant, "py/view", Format(Pixels.BYTES, 5, 1), reliable=True)
            server.wait_client(PATIENCE)
            server.send(b"first")
            with client.receive(PATIENCE) as frame:
                view = array(frame.data)
            self.assertEqual(bytes(view), b"first")
            del view
            server.send(b"other")
            self.assertEqual(bytes(client.receive(PATIENCE)), b"other")
            server.close()

    def test_a_sink_that_can_hold_a_single_long_message_says_so(self) -> None:
        for mib, told in ((48, "reliable source waits"), (64, "^$")):
            session = takt.Session(rx_bytes=mib << 20)
            self.addCleanup(session.close)
            self.assertRegex(session.stream().sink(58).warning, told)

    def test_closing_ends_a_wait(self) -> None:
        waits = {
            "signal": "signal.signal(signal.SIGALRM, lambda *_: part.close()); signal.setitimer(signal.ITIMER_REAL, 0.05)",
            "thread": "threading.Timer(0.05, part.close).start()",
        }
        parts = {
            "part = stream.sink(53); wait = part.receive": "",
            "part = stream.source(53); wait = part.wait_reader": "",
            "part = stream.source(53); held = [part.buffer(1 << 24) for _ in range(4)]; wait = lambda: part.buffer(1 << 24)": "",
            "part = participant.subscriber('py/closing'); wait = part.take": "",
            "part = participant.publisher('py/closing'); wait = part.wait_subscriber": "",
        }
        for how, close in waits.items():
            for part in parts:
                with self.subTest(part, how=how):
                    ended = run(
                        "from takt.topics import Participant\nsession = takt.Session(); stream = session.stream()\n"
                        f"participant = Participant(session)\n{part}\n{close}\n"
                        "try: wait()\nexcept takt.Closed: print('closed')"
                    )
                    self.assertEqual((ended.stdout, ended.returncode), ("closed\n", 0), ended.stderr)

    def raising(self, at: int, call: Callable[[], object]) -> bool:
        """Whether a call ends by what a signal's handler raises at one of the places where one may run."""
        places = 0

        def trace(frame: Any, event: str, _: object) -> Any:
            nonlocal places
            # Handlers do not run where a function returns, and Python ignores what they raise in `__del__`.
            if event != "return" and frame.f_code.co_name != "__del__" and frame.f_code.co_filename.endswith("takt/__init__.py"):
                places += 1
                if places == at:
                    raise Raised
            return trace

        try:
            sys.settrace(trace)
            call()
            return False
        except Raised:
            return True
        finally:
            sys.settrace(None)

    def test_a_handler_that_raises_loses_no_message(self) -> None:
        with self.stream.source(54) as source, self.stream.sink(54, depth=4) as sink:
            raised, at = True, 0
            while raised:
                number = bytes([at % 256])
                source.send(number)
                received: "list[bytes]" = []

                def receive() -> None:
                    message = sink.receive(PATIENCE)
                    received.append(bytes(message.data))
                    message.release()

                at += 1
                raised = self.raising(at, receive)
                if not received:
                    receive()
                self.assertEqual(received, [number], at)
            self.assertGreater(at, 10)

    def test_a_handler_that_raises_costs_no_buffer(self) -> None:
        with self.stream.source(55, depth=1) as source:
            raised, at = True, 0
            while raised:
                at += 1
                raised = self.raising(at, lambda: source.buffer(5, PATIENCE).abandon())
                gc.collect()
                source.buffer(5, 0).abandon()
            self.assertGreater(at, 10)

    def test_blocks_may_be_left_in_forked_children(self) -> None:
        ended = run(
            "session = takt.Session(); stream = session.stream()\nsource, sink = stream.source(56), stream.sink(56)\n"
            "source.send(b'x'); source.send(b'y')\n"
            "def child():\n pid = os.fork()\n if pid == 0: sys.exit(7)\n return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])\n"
            "with sink.receive(60): print(child())\n"
            "with source.buffer(1): print(child())\n"
            "for message in sink:\n print(child())\n break\n"
        )
        self.assertEqual((ended.stdout, ended.stderr), ("7\n7\n7\n", ""))

    def test_tasks_that_are_too_slow_let_others_run_and_share_what_comes(self) -> None:
        async def run() -> "tuple[list[int], int]":
            counts, ticks = [0, 0, 0], 0
            loop = asyncio.get_running_loop()
            with self.stream.source(57) as source, self.stream.sink(57) as sink:
                for _ in range(48):
                    source.send(b"x")
                while len(sink) < 48:
                    await asyncio.sleep(0)

                async def receive(task: int) -> None:
                    async for _ in sink:
                        counts[task] += 1
                        until = loop.time() + 0.002
                        while loop.time() < until:
                            pass

                tasks = [asyncio.ensure_future(receive(task)) for task in range(3)]
                while sum(counts) < 48:
                    ticks += 1
                    await asyncio.sleep(0)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
            return counts, ticks

        counts, ticks = asyncio.run(run())
        self.assertGreaterEqual(min(counts), 8, counts)
        self.assertGreaterEqual(ticks, 16)


class Arguments(unittest.TestCase):
    def setUp(self) -> None:
        self.session = takt.Session(name="test")
        self.addCleanup(self.session.close)
        self.stream = self.session.stream()

    def test_numbers_that_the_library_would_cut_are_named(self) -> None:
        source = self.stream.source(60)
        refused: "list[tuple[object, Callable[[], object]]]" = [
            (2**64 + 5, lambda: source.buffer(2**64 + 5)),
            (-1, lambda: source.buffer(-1)),
            (1 << 70, lambda: source.send(b"x", launch_time_ns=1 << 70)),
            (2**64 + 1, lambda: source.outcome(2**64 + 1)),
            (2**64 + 5, lambda: takt.Session(tx_bytes=2**64 + 5)),
            (1 << 64, lambda: takt.Session(rx_bytes=1 << 64)),
            (-1, lambda: takt.Session(rx_bytes=-1)),
            (1 << 32, lambda: self.session.stream(reliable=True, slow_sinks=1 << 32)),  # type: ignore[arg-type]
            (2, lambda: self.session.stream(reliable=2)),  # type: ignore[arg-type]
            (-1, lambda: self.session.stream(traffic_class=-1)),
        ]
        for number, call in refused:
            with self.assertRaisesRegex(takt.InvalidArgument, f"is {number}[: ]"):
                call()
        with self.assertRaisesRegex(takt.InvalidArgument, "from 0 to 7"):
            self.session.stream(traffic_class=-1)

    def test_wrong_types_are_refused_before_anything_is_done(self) -> None:
        source = self.stream.source(61, depth=1)
        calls: "list[Callable[[], object]]" = [
            lambda: source.buffer("5"),  # type: ignore[arg-type]
            lambda: source.buffer(5.0),  # type: ignore[arg-type]
            lambda: source.outcome("a"),  # type: ignore[arg-type]
            lambda: source.send(b"x", launch_time_ns=1e9),  # type: ignore[arg-type]
            lambda: source.forward(None),  # type: ignore[arg-type]
            lambda: Participant(None),  # type: ignore[arg-type]
            lambda: Client(None, "a"),  # type: ignore[arg-type]
        ]
        for call in calls:
            with self.assertRaises(TypeError):
                call()
        buffer = source.buffer(1, 0)
        for length, launch in ((0.5, None), (None, 0.5)):
            with self.assertRaises(TypeError):
                buffer.emit(length, launch_time_ns=launch)  # type: ignore[arg-type]
        buffer.data[0] = 1
        buffer.emit()

    def test_qualities_that_mean_nothing_are_refused(self) -> None:
        for quality, named in (
            ({"deadline": 1.0}, "deadline"),
            ({"latest": True, "deadline": 1.0}, "deadline"),
            ({"slow_sinks": takt.SlowSinks.WAIT}, "slow_sinks"),
            ({"reliable": True, "patience": None}, "SlowSinks.WAIT"),
        ):
            with self.assertRaisesRegex(takt.InvalidArgument, named):
                self.session.stream(**quality)  # type: ignore[arg-type]


if __name__ == "__main__":
    unittest.main()
