"""Takt's channels in Python.

    import takt

    with takt.Session() as session:
        stream = session.stream()
        with stream.source(7) as source, stream.sink(7) as sink:
            source.send(b"hello")
            with sink.receive() as message:
                print(bytes(message.data))

Messages are written and read in place: the `data` of a `Buffer` or `Message` is a memoryview of shared memory. It ends
with `emit`, `abandon` or `release`; a slice that outlives it stays readable and shows what is there then.

Timeouts are in seconds, None waits for ever, 0 does not wait. Waits let other threads run and end with Ctrl-C, with
`wake()` of another thread, or when the signal's handler raises. A source or sink is for one thread at a time.
"""

from __future__ import annotations

import asyncio
import ctypes
import operator
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from enum import IntEnum
from types import TracebackType
from typing import Generic, NamedTuple, Optional, TypeVar, Union

from . import _native
from ._native import (
    Closed, Disconnected, Error, Interrupted, InvalidArgument, NoRuntime, NotAvailable, NotPermitted, TimedOut, TooLarge,
    WouldBlock, check, lib,
)

__all__ = [
    "Buffer", "Closed", "Counters", "Disconnected", "Error", "Interrupted", "InvalidArgument", "Message", "NoRuntime",
    "NotAvailable", "NotPermitted", "Outcome", "Session", "Sink", "Source", "Stream", "TimedOut", "TooLarge", "WouldBlock",
]
__version__ = lib.takt_version().decode()

Data = Union[bytes, bytearray, memoryview]

_FOREVER = -1
_T = TypeVar("_T")
# Seconds, a hundred years: so many nanoseconds can be counted.
_LONGEST_WAIT = 100 * 365 * 86400.0
# The longest stretch of a wait: a signal may come in the instant before a sleep, and is seen after it.
_STRETCH_NS = 100_000_000


class Outcome(IntEnum):
    """What became of an emitted message. On reliable streams it is PENDING until every sink has it; on others SENT is not
    acknowledged."""

    PENDING = 0
    SENT = 1
    NO_SINK = 2
    UNREACHABLE = 3
    LOST = 4
    UNKNOWN = 5
    LATE = 6
    NOT_SCHEDULED = 7
    REFUSED = 8
    UNDELIVERED = 9


class SlowSinks(IntEnum):
    """What a reliable source does about a sink that has no room."""

    EVICT = 0
    """Waits for `patience`; then the sink does without, until it has room again."""
    WAIT = 1
    """Waits, and all other sinks with it."""
    DROP = 2
    """The sink does without what it has no room for."""


class Counters(NamedTuple):
    """What happened to a sink's messages since it was opened."""

    delivered: int
    dropped_full: int
    dropped_memory: int
    lost: int
    lost_at_disconnect: int
    superseded: int


_Lent = Union[_native.Buffer, _native.Sample, _native.VideoFrame]
_Returned = tuple["ctypes._NamedFuncPointer", _Lent]


class _Handle:
    """A handle of the library. It is closed when nothing refers to it any more: views of its memory do."""

    def __init__(self, pointer: ctypes.c_void_p, close: "ctypes._NamedFuncPointer", parent: Optional["_Handle"]) -> None:
        #: What ctypes hands to the library. A call keeps its arguments: nobody closes a handle that is in use.
        self._as_parameter_: Optional[ctypes.c_void_p] = pointer
        #: The thread that used it last, and what others had of its memory and gave up.
        self.user = 0
        self.returned: "list[_Returned]" = []
        self._close = close
        # Children first: a session ends with the last of its parts.
        self._parent = parent

    def used(self) -> None:
        """This thread uses it."""
        self.user = threading.get_ident()
        while self.returned:
            give_back, native = self.returned.pop()
            give_back(self, ctypes.byref(native))

    def __del__(self) -> None:
        pointer, self._as_parameter_ = self._as_parameter_, None
        if pointer is not None:
            self._close(pointer)


class _Loan:
    """Memory that the library lends for a message. It is given back by `end`, or when neither its owner nor a view of it is
    there any more."""

    # None yet, where a signal's handler has raised at once.
    native: _Lent = _native.Buffer()
    # What views refer to; none yet.
    _array: "Callable[[], Optional[ctypes.Array[ctypes.c_char]]]" = staticmethod(lambda: None)

    def __init__(
        self,
        handle: _Handle,
        native: _Lent,
        give_back: "ctypes._NamedFuncPointer",
        mapping: "Optional[ctypes._NamedFuncPointer]" = None,
    ) -> None:
        self.handle = handle
        self.native = native
        self._give_back = give_back
        self._mapping = mapping

    @property
    def held(self) -> bool:
        return bool(self.native.reserved[0])

    def view(self) -> memoryview:
        """A view of the memory, which keeps the loan for as long as it or a slice is there."""
        array = (ctypes.c_char * self.native.length).from_address(self.native.data or 0)
        array._loan = self  # type: ignore[attr-defined]
        self._array = weakref.ref(array)
        return memoryview(array).cast("B")

    def keep(self) -> None:
        """Has the views that there are stay readable after the end of the loan, though with other content."""
        array = self._array()
        if array is None or self._mapping is None or not self.held:
            return
        pointer = ctypes.c_void_p()
        code = self._mapping(self.handle, ctypes.byref(self.native), ctypes.byref(pointer))
        if code != _native.FORKED:
            check(code)
            array._mapping = _Handle(pointer, lib.takt_mapping_close, None)  # type: ignore[attr-defined]

    def end(self) -> None:
        """Gives the memory back. Memory that cannot be kept for views goes with the last of them."""
        if not self.held:
            return
        if self._array() is not None:
            if self._mapping is None:
                return
            self.keep()
        code = self._give_back(self.handle, ctypes.byref(self.native))
        # In a forked child it is the parent's.
        if code != _native.FORKED:
            check(code)

    def __del__(self) -> None:
        if not self.native.reserved[0]:
            return
        if self.handle.user == threading.get_ident():
            self._give_back(self.handle, ctypes.byref(self.native))
        else:
            # A source or sink is for one thread at a time, and views end in any.
            self.handle.returned.append((self._give_back, self.native))


class _Part:
    """A session, stream, source, sink, or what stands on them."""

    _name = ""
    #: Ends a wait of it; without one, a wait ends with its stretch.
    _wakes: "Optional[ctypes._NamedFuncPointer]" = None
    #: A wait of it was ended by `wake`.
    _woken = False

    def __init__(self, handle: _Handle) -> None:
        self._handle: Optional[_Handle] = handle

    def _open(self) -> _Handle:
        if self._handle is None:
            raise Closed(f"the {self._name} is closed")
        return self._handle

    def close(self) -> None:
        """Closes it: a wait that is under way ends with `Closed`. What was emitted is still sent. A second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None and self._wakes is not None:
            self._wakes(handle)

    def _text(self, function: "ctypes._NamedFuncPointer") -> str:
        length = check(function(self._open(), None, 0))
        text = ctypes.create_string_buffer(length + 1)
        check(function(self._open(), text, length + 1))
        return text.value.decode(errors="replace")

    def __repr__(self) -> str:
        return f"<takt.{type(self).__name__}{' (closed)' if self._handle is None else ''}>"


def _nanoseconds(name: str, seconds: Optional[float]) -> int:
    """For the library: 0 stands for None."""
    if seconds is None:
        return 0
    seconds = _seconds(name, seconds)
    if not 1e-9 <= seconds <= 3600:
        raise InvalidArgument(f"`{name}` is {seconds}: it must be seconds, from a nanosecond to an hour")
    return int(seconds * 1e9)


def _whole(name: str, number: int) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise TypeError(f"`{name}` is {number!r}: it must be an integer, not {type(number).__name__}") from None


def _seconds(name: str, seconds: float) -> float:
    try:
        # float() alone would take text.
        return float(seconds + 0)
    except TypeError:
        raise TypeError(f"`{name}` is {seconds!r}: it must be seconds, a number, not {type(seconds).__name__}") from None


def _bytes(name: str, number: int) -> int:
    """For the library, which has no more of them than memory can have."""
    number = _whole(name, number)
    if not 0 <= number < 1 << 63:
        raise InvalidArgument(f"`{name}` is {number}: it must be a number of bytes, or 0 for the usual one")
    return number


def _number(name: str, number: int, bits: int = 32) -> int:
    """For the library, which would be given the last bits of others."""
    number = _whole(name, number)
    if not 0 <= number < 1 << bits:
        raise InvalidArgument(f"`{name}` is {number}: it must be from 0 to {(1 << bits) - 1}")
    return number


def _size(name: str, number: int) -> int:
    number = _whole(name, number)
    if not 0 <= number < 1 << 63:
        raise InvalidArgument(f"`{name}` is {number}: it must be a number of bytes")
    return number


def _signed(name: str, number: int) -> int:
    """For the library, as `_number`, below 0 as well."""
    number = _whole(name, number)
    if not -1 << 63 <= number < 1 << 63:
        raise InvalidArgument(f"`{name}` is {number}: it must be a number of 64 bits")
    return number


def _launch_time(number: Optional[int]) -> Optional[int]:
    return None if number is None else _signed("launch_time_ns", number)


def _flag(name: str, value: object) -> bool:
    if value not in (False, True):
        raise InvalidArgument(f"`{name}` is {value!r}: it must be True or False")
    return bool(value)


def _instance(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"`{name}` is {value!r}: it must be a {kind.__name__}, not {type(value).__name__}")


def _chars(name: str, text: str) -> bytes:
    """For the library, to which a text ends at its first zero byte."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` is {text!r}: it must be text (str), not {type(text).__name__}")
    if "\0" in text:
        raise InvalidArgument(f"`{name}` is {text!r}: it must have no zero bytes")
    return text.encode()


def _qos(
    fast: bool,
    unlimited: bool,
    traffic_class: Optional[int],
    reliable: bool,
    latest: bool,
    deadline: Optional[float],
    slow_sinks: SlowSinks,
    patience: float,
    datapath: Optional[str],
) -> _native.Qos:
    reliable, latest = _flag("reliable", reliable), _flag("latest", latest)
    if reliable and latest:
        raise InvalidArgument("`reliable` repairs every message and `latest` the newest alone: choose one")
    try:
        slow_sinks = SlowSinks(slow_sinks)
    except ValueError:
        raise InvalidArgument(f"`slow_sinks` is {slow_sinks!r}: it must be one of SlowSinks") from None
    deadline_ns = _nanoseconds("deadline", deadline)
    if not reliable and deadline is not None:
        raise InvalidArgument(f"`deadline` is {deadline} without `reliable`: what is sent once has none")
    if not reliable and slow_sinks != SlowSinks.EVICT:
        raise InvalidArgument(f"`slow_sinks` is {slow_sinks.name} without `reliable`: what is sent once waits for no sink")
    if patience is None:
        raise InvalidArgument("`patience` is None: to wait for ever for sinks is slow_sinks=SlowSinks.WAIT")
    if traffic_class is not None and not 0 <= _whole("traffic_class", traffic_class) <= 7:
        raise InvalidArgument(f"`traffic_class` is {traffic_class}: it must be from 0 to 7, or None for best effort")
    return _native.Qos(
        size=ctypes.sizeof(_native.Qos),
        acceleration=_flag("fast", fast),
        resource_use=_flag("unlimited", unlimited),
        time_sensitivity=traffic_class is not None,
        traffic_class=traffic_class or 0,
        reliability=_native.LATEST if latest else reliable,
        slow_sinks=slow_sinks,
        deadline_ns=deadline_ns,
        patience_ns=_nanoseconds("patience", patience),
        datapath=None if datapath is None else _chars("datapath", datapath),
    )


def _deadline(timeout: Optional[float]) -> Optional[int]:
    if timeout is None:
        return None
    return time.monotonic_ns() + _wait_nanoseconds("timeout", timeout)


def _wait_nanoseconds(name: str, seconds: float) -> int:
    seconds = _seconds(name, seconds)
    # NaN is neither.
    if not 0 <= seconds <= _LONGEST_WAIT:
        raise InvalidArgument(
            f"`{name}` is {seconds}: it must be seconds, 0 not to wait, at most {_LONGEST_WAIT:.0f}, or None to wait for ever"
        )
    return int(seconds * 1e9)


def _wait(part: "_Part", timeout: Optional[float], call: "Callable[[_Handle, int], int]") -> int:
    """Calls with a timeout in nanoseconds until it does not end too early, so that signals are handled meanwhile."""
    deadline = _deadline(timeout)
    # A part that is closed meanwhile lives until the wait has ended.
    handle = part._open()
    # A wait tells of a loss of the runtime that it sees; one that begins when the runtime is away waits for it.
    attached = _is_attached(handle)
    while True:
        handle.used()
        left = _STRETCH_NS if deadline is None else min(_STRETCH_NS, max(0, deadline - time.monotonic_ns()))
        begin = time.monotonic_ns()
        code = call(handle, left)
        if code < 0 and part._handle is not handle:
            raise Closed(f"the {part._name} was closed during the wait")
        if code == Interrupted.code:
            # Handlers run between two instructions, so here: one that raises ends the wait.
            if part._woken:
                part._woken = False
                return check(code)
        elif code == TimedOut.code or (code == WouldBlock.code and timeout != 0):
            attached = True
            if deadline is not None and time.monotonic_ns() >= deadline:
                raise TimedOut(f"nothing within {timeout} s")
        elif (
            code == Disconnected.code
            and not attached
            # At once: the session does not look for the runtime.
            and time.monotonic_ns() - begin >= left > 0
            and (deadline is None or time.monotonic_ns() < deadline)
        ):
            attached = _is_attached(handle)
        else:
            return check(code)


def _is_attached(handle: _Handle) -> bool:
    """Whether the session that it is a part of is attached."""
    while handle._parent is not None:
        handle = handle._parent
    return lib.takt_session_attached(handle) == 1


# Seconds between two looks for a runtime that has gone, and nanoseconds of such a look.
_AWAY = 0.05
_LOOK_NS = 1_000_000
# Seconds for which a task goes on while there is always something.
_SLICE = 0.001


def _tell(ready: "asyncio.Future[None]") -> None:
    if not ready.done():
        ready.set_result(None)


_R = TypeVar("_R")


class _Waited(_Part):
    """A part with a descriptor, for which tasks of an event loop wait."""

    def __init__(self, handle: _Handle) -> None:
        super().__init__(handle)
        #: One for each task that waits.
        self._waiting: "list[asyncio.Future[None]]" = []
        #: Since when tasks have not waited for it.
        self._busy_since: Optional[float] = None

    def fileno(self) -> int:
        raise NotImplementedError

    def _look(self, handle: _Handle) -> int:
        """Has the library wait for `_LOOK_NS`: its code."""
        raise NotImplementedError

    async def _async(self, attempt: "Callable[[], _R]", arm: "Callable[[], bool]") -> _R:
        """What `attempt` gives once it does not raise `WouldBlock`; meanwhile the event loop goes on."""
        loop = asyncio.get_running_loop()
        if self._busy_since is not None and (self._waiting or loop.time() - self._busy_since > _SLICE):
            # It comes faster than it is worked off: others have their turn.
            self._busy_since = None
            await asyncio.sleep(0)
        # As of `_wait`.
        attached = _is_attached(self._open())
        while True:
            try:
                result = attempt()
            except WouldBlock:
                attached = True
            except Disconnected:
                if attached or not self._looks_for_runtime():
                    raise
                await asyncio.sleep(_AWAY)
                attached = _is_attached(self._open())
                continue
            else:
                if self._busy_since is None:
                    self._busy_since = loop.time()
                # This task may have armed the descriptor, and not wait for it: those who do look again.
                self._tell_waiting()
                return result
            if self._woken:
                self._woken = False
                raise Interrupted("the wait was ended by `wake`")
            if arm():
                self._busy_since = None
                await self._readable()

    def _looks_for_runtime(self) -> bool:
        """Whether a short wait is one: it fails at once where the session does not attach again."""
        handle, begin = self._open(), time.monotonic_ns()
        code = self._look(handle)
        return code != Disconnected.code or time.monotonic_ns() - begin >= _LOOK_NS

    async def _readable(self) -> None:
        """Waits for the descriptor, `close` or `wake`."""
        # The descriptor stays open for as long as a task waits for it: its number is nobody else's.
        handle, descriptor = self._open(), self.fileno()
        loop = asyncio.get_running_loop()
        ready: "asyncio.Future[None]" = loop.create_future()
        if not self._waits_in(loop):
            loop.add_reader(descriptor, self._tell_here, loop)
        self._waiting.append(ready)
        try:
            # Whoever closes or wakes says so first, and then tells those who wait.
            if self._handle is handle and not self._woken:
                await ready
        finally:
            self._waiting.remove(ready)
            if not self._waits_in(loop):
                loop.remove_reader(descriptor)
            del handle

    def _waits_in(self, loop: asyncio.AbstractEventLoop) -> bool:
        return any(ready.get_loop() is loop for ready in self._waiting)

    def _tell_here(self, loop: asyncio.AbstractEventLoop) -> None:
        for ready in self._waiting:
            if ready.get_loop() is loop:
                _tell(ready)

    def _tell_waiting(self) -> None:
        """Has every task that waits look again, from any thread."""
        for ready in list(self._waiting):
            try:
                ready.get_loop().call_soon_threadsafe(_tell, ready)
            except RuntimeError:
                pass  # The loop is closed: nobody waits in it.

    def _wake(self, function: "ctypes._NamedFuncPointer") -> None:
        self._woken = True
        check(function(self._open()))
        self._tell_waiting()

    def close(self) -> None:
        """Closes it. Waits of tasks end with `Closed`. A second call does nothing."""
        super().close()
        self._tell_waiting()


class _Receiver(_Waited, Generic[_T]):
    """A part from which something comes."""

    def __init__(self, handle: _Handle) -> None:
        super().__init__(handle)
        #: What was taken when a signal's handler raised, for the next call.
        self._kept: "list[_Loan]" = []

    def _lent(self, handle: _Handle) -> _Loan:
        """A place for what comes next."""
        raise NotImplementedError

    def _take(self, handle: _Handle, ns: int, loan: _Loan) -> int:
        """Has the library fill a place."""
        raise NotImplementedError

    def _received(self, loan: _Loan) -> _T:
        """What came."""
        raise NotImplementedError

    def _next(self, timeout: Optional[float]) -> _T:
        handle = self._open()
        loan = self._kept[0] if self._kept else self._lent(handle)
        try:
            if loan.held:
                self._kept.remove(loan)
            else:
                _wait(self, timeout, lambda handle, ns: self._take(handle, ns, loan))
            return self._received(loan)
        except BaseException:
            # A signal's handler may raise between any two instructions.
            if loan.held:
                self._kept.append(loan)
            raise

    async def _next_async(self, arm: "Callable[[], bool]") -> _T:
        """What comes next; meanwhile the event loop goes on."""
        return await self._async(lambda: self._next(0), arm)

    def _look(self, handle: _Handle) -> int:
        loan = self._lent(handle)
        code = self._take(handle, _LOOK_NS, loan)
        if loan.held:
            self._kept.append(loan)
        return code

    def close(self) -> None:
        """Closes it. Waits of tasks end with `Closed`. A second call does nothing."""
        super().close()
        self._kept.clear()


class Session(_Part):
    """An application attached to the runtime of its node.

    `socket`: the runtime's; $TAKT_SOCKET or the default if None. `embedded`: run a runtime inside this process if none
    answers.
    """

    _name = "session"

    def __init__(
        self,
        socket: Optional[str] = None,
        *,
        name: Optional[str] = None,
        tx_bytes: int = 0,
        rx_bytes: int = 0,
        embedded: bool = False,
        reconnect: bool = True,
    ) -> None:
        options = _native.SessionOptions(
            size=ctypes.sizeof(_native.SessionOptions),
            socket=None if socket is None else _chars("socket", str(socket)),
            name=None if name is None else _chars("name", name),
            tx_bytes=_bytes("tx_bytes", tx_bytes),
            rx_bytes=_bytes("rx_bytes", rx_bytes),
            no_reconnect=not reconnect,
            allow_embedded=_flag("embedded", embedded),
        )
        pointer = ctypes.c_void_p()
        check(lib.takt_session_open(ctypes.byref(options), ctypes.byref(pointer)))
        super().__init__(_Handle(pointer, lib.takt_session_close, None))

    @property
    def attached(self) -> bool:
        """Whether the session is attached to a runtime at this moment."""
        return bool(check(lib.takt_session_attached(self._open())))

    def stream(
        self,
        *,
        fast: bool = False,
        unlimited: bool = False,
        traffic_class: Optional[int] = None,
        reliable: bool = False,
        latest: bool = False,
        deadline: Optional[float] = None,
        slow_sinks: SlowSinks = SlowSinks.EVICT,
        patience: float = 10.0,
        datapath: Optional[str] = None,
    ) -> "Stream":
        """Opens a stream. `fast`: bypass the kernel where the node can; `unlimited`: cores may spin; `traffic_class`,
        0 to 7: time sensitive in that class. `reliable`: what its sources emit arrives in order, and is sent again until
        every sink has it, or with `deadline`, in seconds, while it can arrive in time. `slow_sinks`: what happens while a
        sink has no room; `patience`, in seconds, for EVICT. `latest`: in order, and sent again until every sink's node has it
        or a newer one is emitted, which never waits. `datapath`: this one and no other, such as "xdp": `NotAvailable` where
        the node has it not, and what is emitted reaches no node that it does not reach."""
        qos = _qos(fast, unlimited, traffic_class, reliable, latest, deadline, slow_sinks, patience, datapath)
        pointer = ctypes.c_void_p()
        check(lib.takt_stream_open(self._open(), ctypes.byref(qos), ctypes.byref(pointer)))
        return Stream(_Handle(pointer, lib.takt_stream_close, self._open()))

    def close(self) -> None:
        """Ends the session in order, with its streams, sources and sinks: what was emitted is sent."""
        if self._handle is not None:
            lib.takt_session_end(self._open())
        super().close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream(_Part):
    """Channels of one quality."""

    _name = "stream"

    @property
    def datapath(self) -> str:
        """The name of the datapath that carries the stream."""
        return self._text(lib.takt_stream_datapath)

    @property
    def warning(self) -> str:
        """Why the datapath is not what was asked for; empty if it is."""
        return self._text(lib.takt_stream_warning)

    def source(
        self, channel: int, *, depth: int = 0, at_once_here: bool = False, notify_fd: bool = False
    ) -> "Source":
        """Opens the writing end of a channel. `depth`: most messages under way, a power of two; 0: 1024. `at_once_here`: sinks
        of this node get messages with a launch time at once. `notify_fd`: a descriptor tells of room, for `buffer_async`,
        `send_async`, `fileno` and `arm`; `NotAvailable` with a runtime of an older release."""
        options = _native.SourceOptions(
            size=ctypes.sizeof(_native.SourceOptions),
            depth=_number("depth", depth),
            notify_fd=_flag("notify_fd", notify_fd),
        )
        pointer = ctypes.c_void_p()
        channel = _number("channel", channel, 64)
        check(lib.takt_source_open_with(self._open(), channel, ctypes.byref(options), ctypes.byref(pointer)))
        source = Source(_Handle(pointer, lib.takt_source_close, self._open()))
        if _flag("at_once_here", at_once_here):
            check(lib.takt_source_at_once_here(source._open(), 1))
        return source

    def sink(self, channel: int, *, depth: int = 0, no_local: bool = False, latest: bool = False) -> "Sink":
        """Opens a reading end of a channel. `no_local`: without what this very session emits. `latest`: the newest message
        alone, which takes the place of one that was not received."""
        options = _native.SinkOptions(
            size=ctypes.sizeof(_native.SinkOptions),
            depth=_number("depth", depth),
            notify_fd=1,
            no_local=_flag("no_local", no_local),
            latest=_flag("latest", latest),
        )
        pointer = ctypes.c_void_p()
        check(lib.takt_sink_open_with(self._open(), _number("channel", channel, 64), ctypes.byref(options), ctypes.byref(pointer)))
        return Sink(_Handle(pointer, lib.takt_sink_close, self._open()))

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Source(_Waited):
    """The writing end of a channel."""

    _name = "source"
    _wakes = lib.takt_wake_source

    @property
    def max_message(self) -> int:
        """Longest message in bytes."""
        return check(lib.takt_source_max_message(self._open()))

    @property
    def lost(self) -> int:
        """Messages whose outcome the runtime did not tell before it went away."""
        count = ctypes.c_uint64()
        check(lib.takt_source_lost(self._open(), ctypes.byref(count)))
        return count.value

    def buffer(self, length: int, timeout: Optional[float] = None) -> "Buffer":
        """A buffer to write a message into, in place."""
        length = _size("length", length)
        loan = _Loan(self._open(), _native.Buffer(), lib.takt_buffer_abandon, lib.takt_buffer_mapping)
        _wait(self, timeout, lambda handle, ns: lib.takt_buffer_get(handle, length, ns, ctypes.byref(loan.native)))
        return Buffer(self, loan)

    def send(self, data: Data, timeout: Optional[float] = None, *, launch_time_ns: Optional[int] = None) -> int:
        """Sends bytes as one message; its token for `outcome`."""
        view = memoryview(data).cast("B")
        launch_time_ns = _launch_time(launch_time_ns)
        buffer = self.buffer(view.nbytes, timeout)
        buffer.data[:] = view
        return buffer.emit(launch_time_ns=launch_time_ns)

    def forward(self, message: "Message", timeout: Optional[float] = None) -> int:
        """Sends a received message without a copy if it is of the same session, and gives it up; its token for
        `outcome`."""
        _instance("message", message, Message)
        token = ctypes.c_int64()
        sink, loan = message._sink._open(), message._loan
        loan.keep()
        native = ctypes.byref(loan.native)
        _wait(self, timeout, lambda handle, ns: lib.takt_forward(handle, sink, native, ns, ctypes.byref(token)))
        message.data.release()
        return token.value

    def outcome(self, token: int) -> Outcome:
        """What became of a message."""
        return Outcome(check(lib.takt_emit_outcome(self._open(), _signed("token", token))))

    def wait_reader(self, timeout: Optional[float] = None) -> int:
        """Waits until somebody listens; how many do."""
        return _wait(self, timeout, lambda handle, ns: lib.takt_source_wait_reader(handle, ns))

    def wake(self) -> None:
        """Ends a wait of this source in another thread or a task, or the next one, with `Interrupted`."""
        self._wake(lib.takt_wake_source)

    async def buffer_async(self, length: int) -> "Buffer":
        """A buffer to write a message into, in place; meanwhile the event loop goes on. Of sources with `notify_fd`."""
        self.fileno()
        return await self._async(lambda: self.buffer(length, 0), lambda: self.arm(length))

    async def send_async(self, data: Data, *, launch_time_ns: Optional[int] = None) -> int:
        """As `send`; meanwhile the event loop goes on. Of sources with `notify_fd`."""
        length = memoryview(data).nbytes
        self.fileno()
        return await self._async(
            lambda: self.send(data, 0, launch_time_ns=launch_time_ns), lambda: self.arm(length)
        )

    def fileno(self) -> int:
        """The descriptor that becomes readable when `arm` said true and there may be room. Of sources with `notify_fd`."""
        return check(lib.takt_source_fd(self._open()))

    def arm(self, length: int) -> bool:
        """True: the descriptor becomes readable, once, when there may be room for a message of that many bytes. False: there is
        some already."""
        return bool(check(lib.takt_source_arm(self._open(), _size("length", length))))

    def _look(self, handle: _Handle) -> int:
        loan = _Loan(handle, _native.Buffer(), lib.takt_buffer_abandon, lib.takt_buffer_mapping)
        code = lib.takt_buffer_get(handle, 0, _LOOK_NS, ctypes.byref(loan.native))
        loan.end()
        return int(code)

    def __enter__(self) -> "Source":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Buffer:
    """Memory for one message. As a context manager it is emitted at the end, or abandoned after an exception."""

    def __init__(self, source: Source, loan: _Loan) -> None:
        self._source = source
        self._loan = loan
        self.data: memoryview = loan.view()

    def emit(self, length: Optional[int] = None, *, launch_time_ns: Optional[int] = None) -> int:
        """Sends the first `length` bytes, all if None, at once or at `launch_time_ns` (TAI); the token for `outcome`. What is
        written after it, by a slice or an array, changes what is sent."""
        native = self._loan.native
        most = native.length
        length = most if length is None else _whole("length", length)
        if not 0 <= length <= most:
            raise InvalidArgument(f"`length` is {length}: the buffer has {most} bytes")
        launch_time_ns = _launch_time(launch_time_ns)
        source, token = self._source._open(), ctypes.c_int64()
        self.data.release()
        self._loan.keep()
        native.length = length
        if launch_time_ns is None:
            code = lib.takt_emit(source, ctypes.byref(native), ctypes.byref(token))
        else:
            code = lib.takt_emit_at(source, ctypes.byref(native), launch_time_ns, ctypes.byref(token))
        check(code)
        return token.value

    def abandon(self) -> None:
        """Gives the buffer back without sending it. Nothing happens after `emit`."""
        self.data.release()
        self._loan.end()

    def __enter__(self) -> "Buffer":
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], _: Optional[BaseException], __: Optional[TracebackType]
    ) -> None:
        if kind is not None or not self._loan.held:
            self.abandon()
        else:
            self.emit()


_B = TypeVar("_B", bound="_Borrowed")


class _Borrowed:
    """What was received, in memory that the library lends until it is released."""

    _loan: _Loan
    data: memoryview

    def release(self) -> None:
        """Gives the memory back. A second call does nothing."""
        self.data.release()
        self._loan.end()

    def __len__(self) -> int:
        return int(self._loan.native.length)

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def __enter__(self: _B) -> _B:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Message(_Borrowed):
    """A received message, read in place through `data` until it is released: by `release`, at the end of a `with`, or
    when nothing refers to it or to a view of its `data` any more, such as an array of NumPy."""

    def __init__(self, sink: "Sink", loan: _Loan) -> None:
        self._sink = sink
        self._loan = loan
        info = _native.MessageInfo(size=ctypes.sizeof(_native.MessageInfo))
        check(lib.takt_message_information(loan.handle, ctypes.byref(loan.native), ctypes.byref(info)))
        #: Its number at its source; a gap is a loss.
        self.sequence: int = info.sequence
        #: When the sender's runtime took it, TAI nanoseconds.
        self.send_time_ns: int = info.send_time_ns
        #: The sender, under a number that is random at each start.
        self.sender: int = info.sender
        self.traffic_class: int = info.traffic_class
        self.data: memoryview = loan.view().toreadonly()


class Sink(_Receiver[Message]):
    """A reading end of a channel. Iterating over it, also with `async for`, receives message after message; each is
    released before the next one."""

    _name = "sink"
    _wakes = lib.takt_wake

    def receive(self, timeout: Optional[float] = None) -> Message:
        """The next message."""
        return self._next(timeout)

    def _lent(self, handle: _Handle) -> _Loan:
        return _Loan(handle, _native.Buffer(), lib.takt_release, lib.takt_message_mapping)

    def _take(self, handle: _Handle, ns: int, loan: _Loan) -> int:
        return lib.takt_consume(handle, ns, ctypes.byref(loan.native))

    def _received(self, loan: _Loan) -> Message:
        return Message(self, loan)

    async def receive_async(self) -> Message:
        """The next message; meanwhile the event loop goes on. Where several tasks wait, each message is for one of them."""
        return await self._next_async(self.arm)

    def fileno(self) -> int:
        """The descriptor that becomes readable when `arm` said true and a message is there."""
        return check(lib.takt_sink_fd(self._open()))

    def arm(self) -> bool:
        """True: the descriptor becomes readable with the next message, once. False: there is one already."""
        return not self._kept and bool(check(lib.takt_sink_arm(self._open())))

    def __len__(self) -> int:
        """How many messages wait."""
        return len(self._kept) + check(lib.takt_data_available(self._open()))

    def __bool__(self) -> bool:
        return True

    @property
    def warning(self) -> str:
        """What the memory for received messages cannot do for this sink; empty if nothing."""
        return self._text(lib.takt_sink_warning)

    @property
    def counters(self) -> Counters:
        """What happened to the sink's messages since it was opened."""
        now = _native.Counters(size=ctypes.sizeof(_native.Counters))
        check(lib.takt_sink_read_counters(self._open(), ctypes.byref(now)))
        return Counters(*(getattr(now, field) for field in Counters._fields))

    def wake(self) -> None:
        """Ends a wait of this sink in another thread or a task, or the next one, with `Interrupted`."""
        self._wake(lib.takt_wake)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                message = self.receive()
            except Disconnected:
                continue  # The session attaches again; the next call waits for that.
            with message:
                yield message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            try:
                message = await self.receive_async()
            except Disconnected:
                await asyncio.sleep(_AWAY)
                continue
            with message:
                yield message

    def __enter__(self) -> "Sink":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
