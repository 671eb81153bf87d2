"""The binding at a real runtime, the one that $TAKT_SOCKET names, and at a peer of it ($TAKT_TEST_FAR_SOCKET). `python3 -m unittest` runs it."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import takt
from waiting import PATIENCE, waits_end


def child(code: str) -> subprocess.Popen[bytes]:
    # Who runs the tests in the background may ignore what Ctrl-C sends.
    ready = "import os, signal, sys, takt\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    return subprocess.Popen([sys.executable, "-c", ready + code], stderr=subprocess.PIPE)


class Takt(unittest.TestCase):
    def setUp(self) -> None:
        self.session = takt.Session(name="test")
        self.stream = self.session.stream()
        self.addCleanup(self.session.close)

    def test_messages_are_written_and_read_in_place(self) -> None:
        with self.stream.source(1) as source, self.stream.sink(1) as sink:
            with source.buffer(100) as buffer:
                buffer.data[:5] = b"hello"
            message = sink.receive(PATIENCE)
            self.assertEqual(bytes(message.data[:5]), b"hello")
            self.assertEqual(len(message), 100)
            self.assertTrue(message.data.readonly)
            self.assertEqual(message.sequence, 0)
            kept = message.data[:5]
            message.release()
            message.release()
            with self.assertRaises(ValueError):
                message.data[0]
            token = source.send(b"more")
            self.assertEqual(bytes(sink.receive(PATIENCE)), b"more")
            while source.outcome(token) == takt.Outcome.PENDING:
                pass
            self.assertEqual(source.outcome(token), takt.Outcome.SENT)
            sink.close()
            gc.collect()
            # Whoever keeps a slice keeps the memory under it.
            self.assertEqual(len(bytes(kept)), 5)

    def test_a_received_message_goes_on_without_a_copy(self) -> None:
        other = takt.Session(name="other")
        self.addCleanup(other.close)
        with other.stream().source(1) as source, self.stream.sink(1) as sink, self.stream.source(2, depth=1) as onward:
            with other.stream().sink(2) as far:
                for _ in range(100):
                    source.send(b"hello")
                    message = sink.receive(PATIENCE)
                    with onward.buffer(1), self.assertRaises(takt.TimedOut):
                        onward.forward(message, 0.01)
                    self.assertEqual(bytes(far.receive(PATIENCE))[1:], b"")
                    onward.forward(message, PATIENCE)
                    with self.assertRaises(ValueError):
                        message.data[0]
                    self.assertEqual(bytes(far.receive(PATIENCE)), b"hello")
                    message.release()
                    with self.assertRaises(takt.InvalidArgument):
                        onward.forward(message)

    def test_a_buffer_is_abandoned_by_an_exception_and_shortened_by_wish(self) -> None:
        with self.stream.source(1, depth=1) as source, self.stream.sink(1) as sink:
            for _ in range(10):
                with self.assertRaises(KeyError), source.buffer(8, 0):
                    raise KeyError
                source.buffer(8, 0).abandon()
                source.buffer(8, 0)
                gc.collect()
            held = source.buffer(8)
            with self.assertRaises(takt.WouldBlock):
                source.buffer(8, 0)
            with self.assertRaises(takt.TimedOut):
                source.buffer(8, 0.01)
            held.data[:2] = b"ab"
            held.emit(2)
            self.assertEqual(bytes(sink.receive(PATIENCE)), b"ab")

    def test_errors_name_the_value_and_are_what_python_has_for_them(self) -> None:
        with self.stream.source(1) as source, self.stream.sink(1) as sink:
            with self.assertRaises(TimeoutError):
                sink.receive(0.01)
            with self.assertRaisesRegex(ValueError, str(source.max_message)):
                source.buffer(source.max_message + 1)
            with self.assertRaisesRegex(ValueError, "-1"):
                sink.receive(-1)
            with self.assertRaisesRegex(takt.Error, "9"):
                self.session.stream(traffic_class=9)
            with self.assertRaisesRegex(takt.NotAvailable, "absent and no other: this node has udp"):
                self.session.stream(datapath="absent")
            with self.session.stream(datapath="udp") as stream:
                self.assertEqual(stream.datapath, "udp")
            with self.assertRaisesRegex(ConnectionError, "/nonexistent"):
                takt.Session("/nonexistent/takt.sock")
        with self.assertRaises(takt.Closed):
            source.send(b"")

    def test_a_closed_session_refuses_everything(self) -> None:
        source, sink = self.stream.source(1), self.stream.sink(1)
        buffer = source.buffer(3)
        self.session.close()
        for call in (lambda: buffer.emit(), lambda: source.send(b"x"), lambda: sink.receive(), lambda: self.stream.sink(1)):
            with self.assertRaises(takt.Closed):
                call()

    def test_a_wait_ends_by_another_thread(self) -> None:
        with self.stream.sink(1) as sink:
            for _ in range(20):
                thread = threading.Thread(target=sink.wake)
                thread.start()
                with self.assertRaises(takt.Interrupted):
                    sink.receive()
                thread.join()

    def test_a_wait_goes_on_after_a_handler_and_ends_if_it_raises(self) -> None:
        handled = []
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, lambda *_: handled.append(1)))
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        for unlimited in (False, True):
            with self.session.stream(unlimited=unlimited).sink(1) as sink:
                handled.clear()
                signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
                with self.assertRaises(takt.TimedOut):
                    sink.receive(0.2)
                self.assertTrue(handled)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        with self.stream.sink(1) as sink, self.assertRaises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.005)
            sink.receive()

    def test_ctrl_c_ends_a_program_that_waits(self) -> None:
        for unlimited in (False, True):
            process = child(
                f"sink = takt.Session().stream(unlimited={unlimited}).sink(2)\n"
                "sys.stderr.write('waits\\n'); sys.stderr.flush()\nsink.receive()"
            )
            assert process.stderr is not None
            self.assertEqual(process.stderr.readline(), b"waits\n")
            process.send_signal(signal.SIGINT)
            self.assertIn(b"KeyboardInterrupt", process.stderr.read())
            self.assertNotEqual(process.wait(PATIENCE), 0)
            process.stderr.close()

    def test_nothing_is_lost_by_the_ways_in_which_a_program_ends(self) -> None:
        far = takt.Session(os.environ["TAKT_TEST_FAR_SOCKET"], name="test")
        self.addCleanup(far.close)
        # Room behind those that look for the sinks, however many a busy machine takes.
        depth = 16_384
        with self.stream.sink(3, depth=depth) as near, far.stream().sink(3, depth=depth) as remote:
            sinks = (near, remote)
            with self.stream.source(3) as source:
                while not all(len(sink) for sink in sinks):
                    source.send(b"")
                    time.sleep(0.001)
            ends = (
                "",
                "sys.exit()",
                "os._exit(0)",
                "os.kill(os.getpid(), signal.SIGKILL)",
                "os.kill(os.getpid(), signal.SIGTERM)",
                "os.kill(os.getpid(), signal.SIGINT)",
                "raise RuntimeError",
                "os.abort()",
                "source.close()",
            )
            for end in ends:
                process = child(
                    "source = takt.Session().stream().source(3)\n"
                    "for number in range(1000): source.send(number.to_bytes(4, 'little'))\n" + end
                )
                for sink in sinks:
                    number = 0
                    while number < 1000:
                        with sink.receive(PATIENCE) as message:
                            if len(message) > 0:  # not one of those that looked for the sinks
                                self.assertEqual(int.from_bytes(message.data, "little"), number, end)
                                number += 1
                process.communicate()

    def test_asyncio_receives_while_it_does_other_things(self) -> None:
        async def talk() -> list[bytes]:
            ticks, received = 0, []

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0)

            ticking = asyncio.create_task(tick())
            with self.stream.source(4) as source, self.stream.sink(4) as sink:
                for number in range(100):
                    waiting = asyncio.create_task(sink.receive_async())
                    before = ticks
                    while ticks < before + 3:
                        await asyncio.sleep(0)
                    source.send(bytes([number]))
                    received.append(bytes(await waiting))
                source.send(b"last")
                async for message in sink:
                    received.append(bytes(message))
                    break
            ticking.cancel()
            return received

        received = asyncio.run(talk())
        self.assertEqual(received, [bytes([number]) for number in range(100)] + [b"last"])

    def test_waits_of_tasks_end_when_it_is_closed_or_woken(self) -> None:
        sink = self.stream.sink(40)
        asyncio.run(waits_end(self, sink, sink.receive_async))

    def test_asyncio_sends_when_there_is_room_and_does_other_things_meanwhile(self) -> None:
        async def talk() -> "list[bytes]":
            other = takt.Session(name="other")
            waiting = self.stream_that_waits(other).sink(45, depth=4)
            source = self.stream_that_waits(self.session).source(45, depth=8, notify_fd=True)
            source.wait_reader(PATIENCE)
            received = []

            async def send(first: int) -> None:
                for number in range(first, first + 500):
                    await source.send_async(number.to_bytes(2, "little"))

            async def receive() -> None:
                for _ in range(1500):
                    received.append(bytes(await waiting.receive_async()))

            tasks = [send(0), send(500), send(1000), receive()]
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            with await source.buffer_async(3) as buffer:
                buffer.data[:] = b"end"
            received.append(bytes(await waiting.receive_async()))
            other.close()
            source.close()
            with self.assertRaises(takt.Closed):
                await source.buffer_async(1)
            return received

        received = asyncio.run(talk())
        self.assertEqual(received.pop(), b"end")
        numbers = [int.from_bytes(one, "little") for one in received]
        self.assertEqual(sorted(numbers), list(range(1500)))

    def test_a_source_without_descriptor_has_no_async_calls(self) -> None:
        with self.stream.source(46) as source:
            with self.assertRaises(takt.InvalidArgument):
                asyncio.run(source.send_async(b"x"))

    def test_waits_of_tasks_for_room_end_when_it_is_closed_or_woken(self) -> None:
        source = self.stream.source(47, depth=1, notify_fd=True)
        taken = source.buffer(1, PATIENCE)
        asyncio.run(waits_end(self, source, lambda: source.buffer_async(1)))
        del taken

    def stream_that_waits(self, session: takt.Session) -> takt.Stream:
        return session.stream(reliable=True, slow_sinks=takt.SlowSinks.WAIT)

    def test_a_source_waits_for_who_listens_and_a_sink_need_not_hear_its_own_session(self) -> None:
        with self.stream.source(5) as source, self.stream.sink(5, no_local=True) as sink:
            with self.assertRaises(takt.TimedOut):
                source.wait_reader(0.01)
            other = takt.Session()
            heard = other.stream().sink(5)
            self.assertEqual(source.wait_reader(PATIENCE), 1)
            source.send(b"x")
            self.assertEqual(bytes(heard.receive(PATIENCE)), b"x")
            self.assertEqual(len(sink), 0)
            self.assertEqual(heard.counters.delivered, 1)
            other.close()

    def test_launch_times_hold_here_unless_it_is_to_be_at_once(self) -> None:
        later = time.clock_gettime_ns(time.CLOCK_TAI) + 30_000_000_000
        waits, does_not = self.stream.source(9), self.stream.source(9, at_once_here=True)
        with self.stream.sink(9) as sink, waits, does_not:
            waits.send(b"later", launch_time_ns=later)
            does_not.send(b"at once", launch_time_ns=later)
            with sink.receive(PATIENCE) as message:
                self.assertEqual(bytes(message.data), b"at once")
            with self.assertRaises(takt.WouldBlock):
                sink.receive(0)

    def test_the_newest_alone(self) -> None:
        with self.assertRaises(takt.InvalidArgument):
            self.session.stream(reliable=True, latest=True)
        stream = self.session.stream(latest=True)
        with stream.source(6) as source, stream.sink(6, latest=True) as sink:
            for number in range(50):
                source.send(bytes([number]))
            while sink.counters.delivered < 50:
                time.sleep(0.001)
            with sink.receive(PATIENCE) as message:
                self.assertEqual(bytes(message.data), bytes([49]))
            with self.assertRaises(takt.WouldBlock):
                sink.receive(0)
            self.assertEqual(sink.counters.superseded, 49)

    def test_many_threads_use_a_session(self) -> None:
        def work(channel: int) -> None:
            with self.stream.source(channel) as source, self.stream.sink(channel) as sink:
                for number in range(200):
                    source.send(number.to_bytes(2, "big"))
                    with sink.receive(PATIENCE) as message:
                        if bytes(message.data) != number.to_bytes(2, "big"):
                            raise AssertionError(number)
                done.append(channel)

        done: list[int] = []
        threads = [threading.Thread(target=work, args=(channel,)) for channel in range(100, 108)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(done), 8)

    def test_a_runtime_inside_the_process(self) -> None:
        environment = {**os.environ, "TAKT_SOCKET": "/nonexistent/takt.sock", "TAKT_PORT": "0"}
        code = (
            "import takt\nwith takt.Session(embedded=True) as session:\n stream = session.stream()\n"
            " with stream.source(7) as source, stream.sink(7) as sink:\n  source.send(b'hello')\n"
            "  print(bytes(sink.receive(60)).decode())"
        )
        run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        self.assertEqual((run.stdout, run.stderr), ("hello\n", ""))


if __name__ == "__main__":
    unittest.main()
