"""Publish and subscribe by topic.

    import takt
    from takt.topics import Participant

    with takt.Session(embedded=True) as session, Participant(session) as participant:
        subscriber = participant.subscriber("plant/*/temperature")
        publisher = participant.publisher("plant/7/temperature", reliable=True)
        publisher.wait_subscriber(10)
        publisher.publish(b"21.5")
        for sample in subscriber:
            print(sample.topic, bytes(sample.data))

A topic is a name in levels. Subscribers may ask by a pattern: `*` stands for one level, `**` for any number of them. Timeouts,
threads and Ctrl-C are as in `takt`.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
from collections.abc import AsyncIterator, Iterator
from enum import IntEnum
from typing import NamedTuple, Optional, Union

from . import Counters, Data, Disconnected, InvalidArgument, Outcome, Session, SlowSinks
from . import _AWAY, _Borrowed, _Handle, _Loan, _Part, _Receiver, _bytes, _chars, _flag, _instance, _number, _qos, _signed, _wait, _wait_nanoseconds
from . import _native
from ._native import check, lib

__all__ = ["Encoding", "Participant", "Publisher", "Sample", "Subscriber", "SubscriberCounters", "Topic"]


class Encoding(IntEnum):
    """How the messages of a topic are to be read. From 256 on they are the programs' own."""

    BYTES = 0
    TEXT = 1
    JSON = 2
    CBOR = 3


class Topic(NamedTuple):
    """A topic, with how many write and read it."""

    name: str
    publishers: int
    subscribers: int


class SubscriberCounters(NamedTuple):
    """What happened to a subscriber's messages since it was opened."""

    channels: Counters
    foreign: int
    malformed: int
    unopened: int


class Participant(_Part):
    """A program's place among those that publish and subscribe. `name`: what others see in their lists."""

    _name = "participant"

    def __init__(self, session: Session, name: Optional[str] = None) -> None:
        _instance("session", session, Session)
        pointer = ctypes.c_void_p()
        text = None if name is None else _chars("name", name)
        check(lib.takt_participant_open(session._open(), text, ctypes.byref(pointer)))
        super().__init__(_Handle(pointer, lib.takt_participant_close, session._open()))

    def publisher(
        self,
        topic: str,
        *,
        encoding: Union[Encoding, int] = Encoding.BYTES,
        history: int = 0,
        history_bytes: int = 0,
        depth: int = 0,
        fast: bool = False,
        unlimited: bool = False,
        traffic_class: Optional[int] = None,
        reliable: bool = False,
        latest: bool = False,
        deadline: Optional[float] = None,
        slow_sinks: SlowSinks = SlowSinks.EVICT,
        patience: float = 10.0,
        datapath: Optional[str] = None,
    ) -> "Publisher":
        """Opens a publisher. `history`: how many of its last messages it keeps for late joiners; `history_bytes`: how many bytes
        of them, with 24 more of each; 0: 64 MiB; `depth`: most messages under way, a power of two; 0: 256; the rest as
        `Session.stream`."""
        qos = _qos(fast, unlimited, traffic_class, reliable, latest, deadline, slow_sinks, patience, datapath)
        options = _native.PublisherOptions(
            size=ctypes.sizeof(_native.PublisherOptions),
            qos=ctypes.pointer(qos),
            depth=_number("depth", depth),
            history=_number("history", history),
            encoding=_number("encoding", encoding, 16),
            history_bytes=_bytes("history_bytes", history_bytes),
        )
        pointer = ctypes.c_void_p()
        check(lib.takt_publisher_open(self._open(), _chars("topic", topic), ctypes.byref(options), ctypes.byref(pointer)))
        return Publisher(_Handle(pointer, lib.takt_publisher_close, self._open()), encoding)

    def subscriber(
        self,
        topic: str,
        *,
        history: int = 0,
        depth: int = 0,
        no_local: bool = False,
        latest: bool = False,
        fast: bool = False,
        unlimited: bool = False,
        datapath: Optional[str] = None,
    ) -> "Subscriber":
        """Opens a subscriber of a topic, or of all that a pattern matches. `history`: how many of the last messages of each
        publisher it wants to begin with; `no_local`: without what this very session publishes; `latest`: the newest message of a topic
        alone, which takes the place of one that was not taken."""
        qos = _qos(fast, unlimited, None, False, False, None, SlowSinks.EVICT, 10.0, datapath)
        options = _native.SubscriberOptions(
            size=ctypes.sizeof(_native.SubscriberOptions),
            qos=ctypes.pointer(qos),
            depth=_number("depth", depth),
            history=_number("history", history),
            notify_fd=1,
            no_local=_flag("no_local", no_local),
            latest=_flag("latest", latest),
        )
        pointer = ctypes.c_void_p()
        check(lib.takt_subscriber_open(self._open(), _chars("topic", topic), ctypes.byref(options), ctypes.byref(pointer)))
        return Subscriber(_Handle(pointer, lib.takt_subscriber_close, self._open()))

    def topics(self, quiet: float = 0.3, most: float = 3.0) -> list[Topic]:
        """The topics that are known, once nothing new has been heard of for `quiet` seconds, or after `most`."""
        found: list[Topic] = []

        def see(_: object, topic: "ctypes._Pointer[_native.Topic]") -> None:
            of = topic.contents
            found.append(Topic(of.name.decode(), of.publishers, of.subscribers))

        times = _wait_nanoseconds("quiet", quiet), _wait_nanoseconds("most", most)
        check(lib.takt_topics(self._open(), *times, _native.TOPIC_CALLBACK(see), None))
        return found

    @property
    def problem(self) -> str:
        """Why others do not hear of its topics, or not of all, and how many late joiners did not get all that its publishers keep;
        empty if nothing is wrong."""
        return self._text(lib.takt_participant_problem)

    def __enter__(self) -> "Participant":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Publisher(_Part):
    """Writes a topic."""

    _name = "publisher"

    def __init__(self, handle: _Handle, encoding: int) -> None:
        super().__init__(handle)
        self._encoding = encoding

    def publish(self, data: Data, timeout: Optional[float] = None) -> int:
        """Publishes bytes; the token for `outcome`."""
        view = memoryview(data).cast("B")
        if view.readonly:
            address: object = data if isinstance(data, bytes) else bytes(view)
        else:
            address = (ctypes.c_char * view.nbytes).from_buffer(view)
        token = ctypes.c_int64()
        _wait(self, timeout, lambda handle, ns: lib.takt_publish(handle, address, view.nbytes, ns, ctypes.byref(token)))
        return token.value

    def publish_json(self, value: object, timeout: Optional[float] = None) -> int:
        """Publishes a value as JSON, if the publisher was opened with `encoding=Encoding.JSON`; the token for `outcome`. What JSON
        has not, such as NaN, is refused."""
        if self._encoding != Encoding.JSON:
            raise InvalidArgument(f"the topic's encoding is {self._encoding}: open the publisher with encoding=Encoding.JSON")
        try:
            text = json.dumps(value, allow_nan=False)
        except ValueError as error:
            raise InvalidArgument(f"`value` has no JSON: {error}; JSON has no NaN and no infinity, write None or a text") from error
        return self.publish(text.encode(), timeout)

    def outcome(self, token: int) -> Outcome:
        """What became of a message."""
        return Outcome(check(lib.takt_publish_outcome(self._open(), _signed("token", token))))

    def wait_subscriber(self, timeout: Optional[float] = None) -> int:
        """Waits until the topic has a subscriber; how many it has."""
        return _wait(self, timeout, lambda handle, ns: lib.takt_publisher_wait_subscriber(handle, ns))

    @property
    def max_message(self) -> int:
        """Longest message in bytes: a little less than of a `Source`, and with `history` by the topic's name less again."""
        return check(lib.takt_publisher_max_message(self._open()))

    @property
    def lost(self) -> int:
        """Messages whose outcome the runtime did not tell before it went away."""
        count = ctypes.c_uint64()
        check(lib.takt_publisher_lost(self._open(), ctypes.byref(count)))
        return count.value

    @property
    def warning(self) -> str:
        """Why its datapath is not what was asked for, and which topic of another participant has the same channel; empty if
        neither."""
        return self._text(lib.takt_publisher_warning)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Sample(_Borrowed):
    """A message of a topic, read in place through `data` until it is released: by `release`, at the end of a `with`, or
    when nothing refers to it or to a view of its `data` any more, such as an array of NumPy."""

    def __init__(self, loan: _Loan) -> None:
        self._loan = loan
        native = loan.native
        assert isinstance(native, _native.Sample)
        #: Its topic.
        self.topic: str = native.topic.decode()
        #: Its number among those of its publisher, from 0; a gap is a loss.
        self.number: int = native.number
        #: When the publisher's runtime took it, TAI nanoseconds; if it was kept, when it took it again.
        self.send_time_ns: int = native.send_time_ns
        #: The publisher, under a number that is random at each opening.
        self.publisher: int = native.publisher
        #: How it is to be read: an `Encoding`, or a number of the programs' own.
        self.encoding: int = native.encoding
        #: It was published before the subscriber joined, and may come after later ones.
        self.kept: bool = bool(native.kept)
        self.data: memoryview = loan.view().toreadonly()

    def json(self) -> object:
        """Reads it as JSON, if its publisher says that it is."""
        if self.encoding != Encoding.JSON:
            raise InvalidArgument(f"the message's encoding is {self.encoding}, not {Encoding.JSON:d} (JSON): read its `data`")
        return json.loads(bytes(self.data))


class Subscriber(_Receiver[Sample]):
    """Reads a topic, or all topics that a pattern matches. Iterating over it, also with `async for`, takes message after
    message; each is released before the next one."""

    _name = "subscriber"
    _wakes = lib.takt_subscriber_wake

    def take(self, timeout: Optional[float] = None) -> Sample:
        """The next message."""
        return self._next(timeout)

    def _lent(self, handle: _Handle) -> _Loan:
        return _Loan(handle, _native.Sample(), lib.takt_sample_release, lib.takt_sample_mapping)

    def _take(self, handle: _Handle, ns: int, loan: _Loan) -> int:
        return lib.takt_take(handle, ns, ctypes.byref(loan.native))

    def _received(self, loan: _Loan) -> Sample:
        return Sample(loan)

    async def take_async(self) -> Sample:
        """The next message; meanwhile the event loop goes on. Where several tasks wait, each message is for one of them."""
        return await self._next_async(self.arm)

    def fileno(self) -> int:
        """The descriptor that becomes readable when `arm` said true and a message is there."""
        return check(lib.takt_subscriber_fd(self._open()))

    def arm(self) -> bool:
        """True: the descriptor becomes readable with the next message. False: there is one already."""
        return not self._kept and bool(check(lib.takt_subscriber_arm(self._open())))

    def prune(self) -> int:
        """Gives back the channels of topics that a pattern has matched and that have had no publisher for ten seconds; how many
        there were. Without it a pattern holds a channel for each topic that it has ever read. Not while samples are held."""
        return check(lib.takt_subscriber_prune(self._open()))

    @property
    def warning(self) -> str:
        """What it does not get, if anything, and why: topics of a pattern that could not be opened, and a topic with the same
        channel as one that it reads; empty if nothing."""
        return self._text(lib.takt_subscriber_warning)

    @property
    def counters(self) -> SubscriberCounters:
        """What happened to its messages since it was opened."""
        now = _native.SubscriberCounters(size=ctypes.sizeof(_native.SubscriberCounters))
        check(lib.takt_subscriber_read_counters(self._open(), ctypes.byref(now)))
        channels = Counters(*(getattr(now.channels, field) for field in Counters._fields))
        return SubscriberCounters(channels, now.foreign, now.malformed, now.unopened)

    def wake(self) -> None:
        """Ends a wait of this subscriber in another thread or a task, or the next one, with `Interrupted`."""
        self._wake(lib.takt_subscriber_wake)

    def __iter__(self) -> Iterator[Sample]:
        while True:
            try:
                sample = self.take()
            except Disconnected:
                continue  # The session attaches again; the next call waits for that.
            with sample:
                yield sample

    async def __aiter__(self) -> AsyncIterator[Sample]:
        while True:
            try:
                sample = await self.take_async()
            except Disconnected:
                await asyncio.sleep(_AWAY)
                continue
            with sample:
                yield sample

    def __enter__(self) -> "Subscriber":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
