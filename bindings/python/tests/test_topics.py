"""Topics at a real runtime, the one that $TAKT_SOCKET names, and at a peer of it ($TAKT_TEST_FAR_SOCKET)."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
import unittest

import takt
from takt.topics import Encoding, Participant
from waiting import PATIENCE, waits_end


class Topics(unittest.TestCase):
    def setUp(self) -> None:
        self.session = takt.Session(name="near")
        self.far = takt.Session(os.environ["TAKT_TEST_FAR_SOCKET"], name="far")
        for session in (self.session, self.far):
            self.addCleanup(session.close)
        self.near = Participant(self.session, "near")
        self.other = Participant(self.far, "far")

    def test_what_the_library_would_cut_is_refused(self) -> None:
        for refused in (
            lambda: self.near.publisher("py/a\0b"),
            lambda: self.near.subscriber("py/a\0b"),
            lambda: self.near.publisher("py/1", history=2**32 + 1),
            lambda: self.near.publisher("py/1", depth=2**33 + 16),
            lambda: self.near.publisher("py/1", encoding=2**16),
            lambda: self.near.publisher("py/1", traffic_class=2**32),
            lambda: self.near.subscriber("py/1", history=-1),
            lambda: self.near.topics(-1, -1),
            lambda: self.near.topics(0.1, float("inf")),
            lambda: Participant(self.session, "a\0b"),
            lambda: takt.Session(name="a\0b"),
            lambda: self.session.stream().source(2**64),
            lambda: self.session.stream().sink(1, depth=2**32),
        ):
            with self.assertRaises(takt.InvalidArgument):
                refused()
        subscriber = self.near.subscriber("py/1")
        for timeout in (-1, float("inf"), float("nan"), 1e18):
            with self.assertRaises(takt.InvalidArgument):
                subscriber.take(timeout)

    def test_wrong_types_are_told_by_the_name_of_the_parameter(self) -> None:
        for parameter, refused in {
            "topic": lambda: self.near.publisher(b"py/1"),  # type: ignore[arg-type]
            "name": lambda: Participant(self.session, 5),  # type: ignore[arg-type]
            "encoding": lambda: self.near.publisher("py/1", encoding="json"),  # type: ignore[arg-type]
            "history": lambda: self.near.subscriber("py/1", history=2.5),  # type: ignore[arg-type]
            "history_bytes": lambda: self.near.publisher("py/1", history_bytes=None),  # type: ignore[arg-type]
            "traffic_class": lambda: self.near.publisher("py/1", traffic_class="high"),  # type: ignore[arg-type]
            "deadline": lambda: self.near.publisher("py/1", deadline="2ms"),  # type: ignore[arg-type]
            "timeout": lambda: self.near.subscriber("py/1").take("1"),  # type: ignore[arg-type]
        }.items():
            with self.assertRaisesRegex(TypeError, f"`{parameter}` is .*: it must be"):
                refused()

    def test_json_is_what_is_declared_as_such(self) -> None:
        publisher = self.near.publisher("py/text", encoding=Encoding.TEXT)
        subscriber = self.near.subscriber("py/text")
        publisher.wait_subscriber(PATIENCE)
        with self.assertRaisesRegex(takt.InvalidArgument, "Encoding.JSON"):
            publisher.publish_json({})
        declared = self.near.publisher("py/json", encoding=Encoding.JSON)
        for value in (float("nan"), [1, float("inf")], {"a": -float("inf")}):
            with self.assertRaisesRegex(takt.InvalidArgument, "JSON has no NaN"):
                declared.publish_json(value)
        publisher.publish(b"{}")
        with subscriber.take(PATIENCE) as sample, self.assertRaisesRegex(takt.InvalidArgument, "encoding is 1"):
            sample.json()

    def test_messages_go_by_topic_and_pattern_between_nodes(self) -> None:
        publisher = self.near.publisher("py/1", encoding=Encoding.JSON, reliable=True)
        subscriber = self.other.subscriber("py/1")
        pattern = self.other.subscriber("py/*")
        publisher.wait_subscriber(PATIENCE)
        token = publisher.publish_json({"a": [1, 2]})
        publisher.publish(bytearray(b"writable"))
        publisher.publish(b"")
        with subscriber.take(PATIENCE) as sample:
            self.assertEqual((sample.topic, sample.json(), sample.number), ("py/1", {"a": [1, 2]}, 0))
            self.assertEqual((sample.encoding, sample.kept), (Encoding.JSON, False))
            self.assertTrue(sample.data.readonly)
        sample.release()
        self.assertEqual(bytes(subscriber.take(PATIENCE)), b"writable")
        self.assertEqual(len(subscriber.take(PATIENCE)), 0)
        with self.assertRaises(takt.WouldBlock):
            subscriber.take(0)
        with self.assertRaises(takt.TimedOut):
            subscriber.take(0.001)
        while publisher.outcome(token) == takt.Outcome.PENDING:
            pass
        self.assertEqual(publisher.outcome(token), takt.Outcome.SENT)
        # The pattern reads what it has heard of.
        while True:
            publisher.publish(b"again")
            try:
                self.assertEqual(pattern.take(0.01).topic, "py/1")
                break
            except takt.TimedOut:
                pass
        counters = subscriber.counters
        self.assertEqual((counters.foreign, counters.malformed, counters.unopened), (0, 0, 0))
        self.assertGreaterEqual(counters.channels.delivered, 3)

    def test_late_joiners_get_what_was_kept_and_topics_are_listed(self) -> None:
        publisher = self.near.publisher("py/kept", history=2)
        for number in range(3):
            token = publisher.publish(str(number).encode())
            while publisher.outcome(token) == takt.Outcome.PENDING:
                time.sleep(0.001)  # A subscriber would get it as it comes.
        subscriber = self.other.subscriber("py/kept", history=5)
        samples = [subscriber.take(PATIENCE) for _ in range(2)]
        self.assertEqual([(bytes(sample), sample.kept) for sample in samples], [(b"1", True), (b"2", True)])
        # A busy node may tell of the publisher later than what is kept comes.
        deadline = time.monotonic() + PATIENCE
        while ("py/kept", 1, 1) not in self.other.topics(quiet=0.05):
            self.assertLess(time.monotonic(), deadline)

    def test_what_is_kept_is_bounded_in_bytes(self) -> None:
        publisher = self.near.publisher("py/bounded", history=5, history_bytes=2 * (24 + 3))
        self.assertEqual(publisher.warning, "")
        for message in (b"one", b"two", b"six"):
            token = publisher.publish(message)
            while publisher.outcome(token) == takt.Outcome.PENDING:
                time.sleep(0.001)  # A subscriber would get it as it comes.
        subscriber = self.other.subscriber("py/bounded", history=5)
        self.assertEqual([bytes(subscriber.take(PATIENCE)) for _ in range(2)], [b"two", b"six"])

    def test_late_joiners_that_do_not_get_what_was_kept_are_told(self) -> None:
        publisher = self.near.publisher("py/missed", history=1)
        publisher.publish(b"kept")
        self.assertEqual((self.near.problem, publisher.lost), ("", 0))
        # Somebody who asks for what was kept, and reads no inbox (docs/reference/topics.md).
        channel = int.from_bytes(hashlib.sha256(b"topics/1").digest()[:8], "big") | 1 << 63
        nobody = takt.Session(name="nobody")
        self.addCleanup(nobody.close)
        directory = nobody.stream(reliable=True).source(channel)
        wants = {"id": 8, "topic": "py/missed", "role": "subscriber", "encoding": 0, "history": 1, "inbox": 9}
        update = {"say": "update", "participant": 7, "name": "nobody", "from": 0, "to": 1, "add": [wants], "remove": []}
        directory.send(json.dumps(update).encode())
        deadline = time.monotonic() + PATIENCE
        while not self.near.problem:
            self.assertLess(time.monotonic(), deadline)
            directory.send(json.dumps({"say": "alive", "participant": 7, "version": 1}).encode())
            time.sleep(0.1)
        self.assertRegex(self.near.problem, "1 late joiner.* did not get")

    def test_another_topic_on_the_same_channel_is_told(self) -> None:
        subscriber = self.near.subscriber("py/collides")
        self.assertEqual(subscriber.warning, "")
        channel = int.from_bytes(hashlib.sha256(b"topic/py/collides").digest()[:8], "big") | 1 << 63
        source = self.session.stream().source(channel)
        source.send(bytes([1, *bytes(23)]))  # A header as docs/reference/topics.md has it.
        while subscriber.counters.foreign == 0:
            with self.assertRaises(takt.WouldBlock):
                subscriber.take(0)
        self.assertRegex(subscriber.warning, 'another topic.*"py/collides"')

    def test_a_pattern_gives_back_what_nobody_writes(self) -> None:
        publisher = self.near.publisher("py/goes/1")
        pattern = self.near.subscriber("py/goes/*")
        while True:
            publisher.publish(b"tried")
            try:
                sample = pattern.take(0.01)
                break
            except takt.TimedOut:
                pass
        with self.assertRaisesRegex(takt.InvalidArgument, "release them"):
            pattern.prune()
        sample.release()
        self.assertEqual(pattern.prune(), 0)
        publisher.close()
        while pattern.prune() == 0:
            try:
                pattern.take(0.01).release()
            except takt.TimedOut:
                pass
        self.assertEqual((pattern.prune(), pattern.warning), (0, ""))

    def test_an_event_loop_goes_on_meanwhile(self) -> None:
        publisher = self.near.publisher("py/async")

        async def run(asked: str) -> list[bytes]:
            subscriber = self.near.subscriber(asked)
            taken: list[bytes] = []

            async def take() -> None:
                async for sample in subscriber:
                    taken.append(bytes(sample))
                    if taken[-1] == b"last":
                        return

            task = asyncio.ensure_future(take())
            while not taken:
                publisher.publish(b"first")
                await asyncio.sleep(0.001)
            publisher.publish(b"last")
            await asyncio.wait_for(task, PATIENCE)
            return taken

        for asked in ("py/async", "*/async"):
            taken = asyncio.run(run(asked))
            self.assertEqual((taken[0], taken[-1]), (b"first", b"last"))

    def test_waits_of_tasks_end_when_it_is_closed_or_woken(self) -> None:
        subscriber = self.near.subscriber("py/closed")
        asyncio.run(waits_end(self, subscriber, subscriber.take_async))

    def test_tasks_that_wait_at_once_share_what_comes(self) -> None:
        async def run() -> None:
            for asked in ("py/shared", "*/shared"):
                subscriber = self.near.subscriber(asked)
                publisher = self.near.publisher("py/shared", reliable=True)
                first = asyncio.ensure_future(subscriber.take_async())
                while not first.done():  # A pattern reads what it has heard of.
                    publisher.publish(b"tried")
                    await asyncio.sleep(0.001)
                first.result().release()
                while True:
                    try:
                        subscriber.take(0).release()
                    except takt.WouldBlock:
                        break
                tasks = [asyncio.ensure_future(subscriber.take_async()) for _ in range(3)]
                await asyncio.sleep(0)
                for number in range(3):
                    publisher.publish(str(number).encode())
                    await asyncio.wait(tasks, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
                ended, waiting = await asyncio.wait(tasks, timeout=PATIENCE)
                self.assertEqual(waiting, set())
                self.assertEqual(sorted(bytes(task.result()) for task in ended), [b"0", b"1", b"2"])
                publisher.close()

        asyncio.run(run())

    def test_a_wait_ends_by_another_thread(self) -> None:
        subscriber = self.near.subscriber("py/silent")
        thread = threading.Thread(target=subscriber.wake)
        thread.start()
        with self.assertRaises(takt.Interrupted):
            subscriber.take(PATIENCE)
        thread.join()

    def test_the_longest_message_is_told_as_its_publisher_counts(self) -> None:
        publisher = self.near.publisher("py/long")
        most = publisher.max_message
        with self.assertRaisesRegex(takt.TooLarge, f"{most + 1} .*{most}"):
            publisher.publish(bytes(most + 1))
        publisher.publish(bytes(most), PATIENCE)

    def test_what_is_wrong_is_told(self) -> None:
        for topic in ("", "/a", "a//b", "a/*"):
            with self.assertRaisesRegex(takt.InvalidArgument, "cannot use"):
                self.near.publisher(topic)
        with self.assertRaisesRegex(takt.InvalidArgument, "whole levels"):
            self.near.subscriber("a*")
        with self.assertRaisesRegex(takt.InvalidArgument, "at most 65536"):
            self.near.publisher("a", history=65537)
        for number in (-1, 1 << 63):
            with self.assertRaisesRegex(takt.InvalidArgument, "`history_bytes` is"):
                self.near.publisher("a", history=1, history_bytes=number)
        publisher = self.near.publisher("a")
        publisher.close()
        with self.assertRaises(takt.Closed):
            publisher.publish(b"")


if __name__ == "__main__":
    unittest.main()
