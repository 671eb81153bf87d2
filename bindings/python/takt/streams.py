"""Raw frames, as cameras make them, from a server to any number of clients.

    import takt
    from takt.streams import Client, Format, Pixels, Server
    from takt.topics import Participant

    with takt.Session(embedded=True) as session, Participant(session) as participant:
        client = Client(participant, "camera/1")
        server = Server(participant, "camera/1", Format(Pixels.RGB, 640, 360))
        server.wait_client(10)
        server.send(bytes(640 * 360 * 3))
        with client.receive() as frame:
            print(frame.number, frame.format, len(frame))

`numpy.frombuffer(frame.data, dtype="u1").reshape(frame.format.height, frame.format.width, 3)` is the picture, without a copy, until
the frame is released. Timeouts, threads and Ctrl-C are as in `takt`.
"""

from __future__ import annotations

import ctypes
from collections.abc import AsyncIterator, Iterator
from enum import IntEnum
from typing import NamedTuple, Optional

from . import Counters, Data, SlowSinks, _Borrowed, _Handle, _Loan, _Part, _Receiver
from . import _bytes, _chars, _flag, _instance, _nanoseconds, _number, _qos, _signed, _wait, _wait_nanoseconds
from . import _native
from ._native import check, lib
from .topics import Participant, SubscriberCounters

__all__ = ["Client", "ClientCounters", "EndOfStream", "Format", "Frame", "Pixels", "Server"]


class EndOfStream(Exception):
    """The server has ended the stream. Frames of another one may follow."""


class Pixels(IntEnum):
    """What lies where a pixel is."""

    BYTES = 0
    RGB = 1
    RGBA = 2
    BGR = 3
    BGRA = 4
    UYVY = 5
    GRAY = 6


class Format(NamedTuple):
    """What a frame is."""

    pixels: Pixels
    width: int
    height: int


def _format(format: Format) -> _native.VideoFormat:
    pixels, width, height = format
    return _native.VideoFormat(Pixels(pixels), _number("width", width), _number("height", height))


class ClientCounters(NamedTuple):
    """What happened to the frames of a client since it was opened."""

    frames: int
    with_holes: int
    incomplete: int
    lost: int
    skipped: int
    too_large: int
    late: int
    other_server: int
    slices: SubscriberCounters
    no_memory: int


class Server(_Part):
    """Sends the frames of a stream. Closing it tells clients that the stream has ended.

    `period`: seconds from frame to frame; `spread`: slices are launched at even distances over nine tenths of it; the rest as
    `takt_video_server_options` (include/takt.h) and `Session.stream`."""

    _name = "server"

    def __init__(
        self,
        participant: Participant,
        stream: str,
        format: Format,
        *,
        period: Optional[float] = None,
        spread: bool = False,
        slice: int = 0,
        depth: int = 0,
        fast: bool = False,
        unlimited: bool = False,
        traffic_class: Optional[int] = None,
        reliable: bool = False,
        deadline: Optional[float] = None,
        slow_sinks: SlowSinks = SlowSinks.EVICT,
        patience: float = 10.0,
        datapath: Optional[str] = None,
    ) -> None:
        qos = _qos(fast, unlimited, traffic_class, reliable, False, deadline, slow_sinks, patience, datapath)
        options = _native.VideoServerOptions(
            size=ctypes.sizeof(_native.VideoServerOptions),
            qos=ctypes.pointer(qos),
            period_ns=_nanoseconds("period", period),
            spread=_flag("spread", spread),
            slice=_number("slice", slice),
            depth=_number("depth", depth),
        )
        of = _format(format)
        pointer = ctypes.c_void_p()
        _instance("participant", participant, Participant)
        opened = lib.takt_video_server_open(
            participant._open(), _chars("stream", stream), ctypes.byref(of), ctypes.byref(options), ctypes.byref(pointer)
        )
        check(opened)
        super().__init__(_Handle(pointer, lib.takt_video_server_close, participant._open()))

    def send(self, frame: Data, timeout: Optional[float] = None, *, captured_ns: int = 0) -> int:
        """Sends a frame, which was captured at a TAI time; 0: now. Its number. If `timeout` is too short for the whole frame, or a
        signal handler raises meanwhile, clients drop what was sent of it."""
        view = memoryview(frame).cast("B")
        if view.readonly:
            address: object = frame if isinstance(frame, bytes) else bytes(view)
        else:
            address = (ctypes.c_char * view.nbytes).from_buffer(view)
        number, captured = ctypes.c_uint64(), _signed("captured_ns", captured_ns)
        # In one piece: a wait that is cut in parts would cut frames.
        ns = -1 if timeout is None else _wait_nanoseconds("timeout", timeout)
        check(lib.takt_video_send(self._open(), address, view.nbytes, captured, ns, ctypes.byref(number)))
        return number.value

    def wait_client(self, timeout: Optional[float] = None) -> int:
        """Waits until the stream has a client; how many it has."""
        return _wait(self, timeout, lambda handle, ns: lib.takt_video_server_wait_client(handle, ns))

    def set_format(self, format: Format) -> None:
        """The frames that follow are of this format."""
        check(lib.takt_video_server_set_format(self._open(), ctypes.byref(_format(format))))

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Frame(_Borrowed):
    """A frame, read in place through `data` until it is released: by `release`, at the end of a `with`, or when nothing refers to it
    any more. An array of NumPy, or another view of `data`, keeps it also after `release`."""

    def __init__(self, loan: _Loan) -> None:
        self._loan = loan
        native = loan.native
        assert isinstance(native, _native.VideoFrame)
        #: Its number among those of its server, from 0.
        self.number: int = native.number
        #: What it is.
        self.format = Format(Pixels(native.format.pixels), native.format.width, native.format.height)
        #: When it was captured, by the server's TAI clock.
        self.captured_ns: int = native.captured_ns
        #: When its last slice was in place, by this node's TAI clock.
        self.completed_ns: int = native.completed_ns
        #: Seconds from frame to frame, if the server knows.
        self.period: Optional[float] = native.period_ns / 1e9 or None
        #: What is missing, as ranges of bytes; its content is arbitrary.
        self.holes: list[range] = [range(hole.begin, hole.end) for hole in native.holes[: native.hole_count]]
        self.data: memoryview = loan.view().toreadonly()


class Client(_Receiver[Frame]):
    """Receives the frames of a stream. Iterating over it, also with `async for`, takes frame after frame until the server ends; each
    is released before the next one.

    `all`: every frame counts, up to `frames` wait or are held; without it the latest one is kept while the program is busy. `holes`:
    frames that lack slices are delivered, too. `most_bytes`: longest frame; 0: 256 MiB. `memory`: bytes of memory for frames; 0: 1 GiB, or
    what three of the longest need."""

    _name = "client"
    _wakes = lib.takt_video_client_wake

    def __init__(
        self,
        participant: Participant,
        stream: str,
        *,
        all: bool = False,
        holes: bool = False,
        frames: int = 0,
        depth: int = 0,
        most_bytes: int = 0,
        memory: int = 0,
        fast: bool = False,
        unlimited: bool = False,
        datapath: Optional[str] = None,
    ) -> None:
        qos = _qos(fast, unlimited, None, False, False, None, SlowSinks.EVICT, 10.0, datapath)
        options = _native.VideoClientOptions(
            size=ctypes.sizeof(_native.VideoClientOptions),
            qos=ctypes.pointer(qos),
            all=_flag("all", all),
            holes=_flag("holes", holes),
            frames=_number("frames", frames),
            depth=_number("depth", depth),
            most_bytes=_bytes("most_bytes", most_bytes),
            memory=_bytes("memory", memory),
        )
        pointer = ctypes.c_void_p()
        _instance("participant", participant, Participant)
        opened = lib.takt_video_client_open(
            participant._open(), _chars("stream", stream), ctypes.byref(options), ctypes.byref(pointer)
        )
        check(opened)
        super().__init__(_Handle(pointer, lib.takt_video_client_close, participant._open()))

    def receive(self, timeout: Optional[float] = None) -> Frame:
        """The next frame. `EndOfStream` once when the server has ended."""
        return self._next(timeout)

    def _lent(self, handle: _Handle) -> _Loan:
        return _Loan(handle, _native.VideoFrame(), lib.takt_video_frame_release)

    def _take(self, handle: _Handle, ns: int, loan: _Loan) -> int:
        return lib.takt_video_next(handle, ns, ctypes.byref(loan.native))

    def _received(self, loan: _Loan) -> Frame:
        if not loan.held:
            raise EndOfStream("the server has ended the stream")
        return Frame(loan)

    async def receive_async(self) -> Frame:
        """The next frame; meanwhile the event loop goes on. Where several tasks wait, each frame is for one of them."""
        return await self._next_async(lambda: not self._kept)

    def fileno(self) -> int:
        """A descriptor that is readable while `receive` has something to say."""
        return check(lib.takt_video_client_fd(self._open()))

    @property
    def counters(self) -> ClientCounters:
        """What happened to its frames since it was opened."""
        now = _native.VideoClientCounters(size=ctypes.sizeof(_native.VideoClientCounters))
        check(lib.takt_video_client_read_counters(self._open(), ctypes.byref(now)))
        channels = Counters(*(getattr(now.slices.channels, field) for field in Counters._fields))
        slices = SubscriberCounters(channels, now.slices.foreign, now.slices.malformed, now.slices.unopened)
        of_frames = {field: getattr(now, field) for field in ClientCounters._fields if field != "slices"}
        return ClientCounters(slices=slices, **of_frames)

    def wake(self) -> None:
        """Ends a wait of this client in another thread or a task, or the next one, with `Interrupted`."""
        self._wake(lib.takt_video_client_wake)

    def __iter__(self) -> Iterator[Frame]:
        while True:
            try:
                frame = self.receive()
            except EndOfStream:
                return
            with frame:
                yield frame

    async def __aiter__(self) -> AsyncIterator[Frame]:
        while True:
            try:
                frame = await self.receive_async()
            except EndOfStream:
                return
            with frame:
                yield frame

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
