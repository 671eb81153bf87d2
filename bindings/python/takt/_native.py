"""libtakt.so by ctypes: its structures, functions and errors (include/takt.h).

ctypes releases the interpreter's lock during each call, so other threads run while one waits.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path


def _load() -> ctypes.CDLL:
    """The library that $TAKT_LIBRARY names, or the one in this package, or as the loader finds it."""
    named = os.environ.get("TAKT_LIBRARY")
    beside = Path(__file__).parent / "libtakt.so.0"
    name = named or (str(beside) if beside.exists() else "libtakt.so.0")
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(
            f"cannot load {name}: {error}; install libtakt0, or name the library in TAKT_LIBRARY"
        ) from error


class SessionOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("socket", c_char_p),
        ("name", c_char_p),
        ("tx_bytes", c_uint64),
        ("rx_bytes", c_uint64),
        ("request_timeout_ns", c_uint64),
        ("no_reconnect", c_int),
        ("allow_embedded", c_int),
    ]


class Qos(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("acceleration", c_int),
        ("resource_use", c_int),
        ("time_sensitivity", c_int),
        ("traffic_class", c_int),
        ("reliability", c_int),
        ("slow_sinks", c_int),
        ("deadline_ns", c_uint64),
        ("patience_ns", c_uint64),
        ("datapath", c_char_p),
    ]


class Buffer(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("length", c_size_t), ("reserved", c_uint64 * 2)]


class MessageInfo(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sequence", c_uint64),
        ("send_time_ns", c_int64),
        ("sender", c_uint32),
        ("traffic_class", c_uint32),
    ]


# TAKT_LATEST
LATEST = 2
# TAKT_E_FORKED
FORKED = -13


class SourceOptions(ctypes.Structure):
    _fields_ = [("size", c_size_t), ("depth", c_uint32), ("notify_fd", c_int)]


class SinkOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("callback", c_void_p),
        ("user", c_void_p),
        ("depth", c_uint32),
        ("notify_fd", c_int),
        ("no_local", c_int),
        ("latest", c_int),
    ]


class Counters(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("delivered", c_uint64),
        ("dropped_full", c_uint64),
        ("dropped_memory", c_uint64),
        ("lost", c_uint64),
        ("lost_at_disconnect", c_uint64),
        ("superseded", c_uint64),
    ]


class Topic(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("publishers", c_uint32), ("subscribers", c_uint32)]


TOPIC_CALLBACK = ctypes.CFUNCTYPE(None, c_void_p, POINTER(Topic))


class PublisherOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("qos", POINTER(Qos)),
        ("depth", c_uint32),
        ("history", c_uint32),
        ("encoding", c_int),
        ("history_bytes", c_size_t),
    ]


class SubscriberOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("qos", POINTER(Qos)),
        ("callback", c_void_p),
        ("user", c_void_p),
        ("depth", c_uint32),
        ("history", c_uint32),
        ("notify_fd", c_int),
        ("no_local", c_int),
        ("latest", c_int),
    ]


class Sample(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("length", c_size_t),
        ("topic", c_char_p),
        ("number", c_uint64),
        ("send_time_ns", c_int64),
        ("publisher", c_uint32),
        ("encoding", c_uint16),
        ("kept", c_uint16),
        ("reserved", c_uint64 * 2),
    ]


class SubscriberCounters(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("channels", Counters),
        ("foreign", c_uint64),
        ("malformed", c_uint64),
        ("unopened", c_uint64),
    ]


class VideoFormat(ctypes.Structure):
    _fields_ = [("pixels", c_int), ("width", c_uint32), ("height", c_uint32)]


class VideoServerOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("qos", POINTER(Qos)),
        ("period_ns", c_uint64),
        ("spread", c_int),
        ("slice", c_uint32),
        ("depth", c_uint32),
    ]


class VideoClientOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("qos", POINTER(Qos)),
        ("all", c_int),
        ("holes", c_int),
        ("frames", c_uint32),
        ("depth", c_uint32),
        ("most_bytes", c_size_t),
        ("memory", c_size_t),
    ]


class VideoHole(ctypes.Structure):
    _fields_ = [("begin", c_size_t), ("end", c_size_t)]


class VideoFrame(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("length", c_size_t),
        ("format", VideoFormat),
        ("period_ns", c_uint32),
        ("number", c_uint64),
        ("captured_ns", c_int64),
        ("completed_ns", c_int64),
        ("holes", POINTER(VideoHole)),
        ("hole_count", c_size_t),
        ("reserved", c_uint64 * 2),
    ]


class VideoClientCounters(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("frames", c_uint64),
        ("with_holes", c_uint64),
        ("incomplete", c_uint64),
        ("lost", c_uint64),
        ("skipped", c_uint64),
        ("too_large", c_uint64),
        ("late", c_uint64),
        ("other_server", c_uint64),
        ("slices", SubscriberCounters),
        ("no_memory", c_uint64),
    ]


lib = _load()

_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "strerror": (c_char_p, [c_int]),
    "last_error": (c_char_p, []),
    "version": (c_char_p, []),
    "session_open": (c_int, [POINTER(SessionOptions), POINTER(c_void_p)]),
    "session_end": (c_int, [c_void_p]),
    "session_close": (None, [c_void_p]),
    "session_attached": (c_int, [c_void_p]),
    "stream_open": (c_int, [c_void_p, POINTER(Qos), POINTER(c_void_p)]),
    "stream_close": (None, [c_void_p]),
    "stream_datapath": (c_int, [c_void_p, c_char_p, c_size_t]),
    "stream_warning": (c_int, [c_void_p, c_char_p, c_size_t]),
    "source_open_with": (c_int, [c_void_p, c_uint64, POINTER(SourceOptions), POINTER(c_void_p)]),
    "source_close": (None, [c_void_p]),
    "source_at_once_here": (c_int, [c_void_p, c_int]),
    "source_max_message": (c_int, [c_void_p]),
    "source_lost": (c_int, [c_void_p, POINTER(c_uint64)]),
    "source_wait_reader": (c_int, [c_void_p, c_int64]),
    "wake_source": (c_int, [c_void_p]),
    "source_fd": (c_int, [c_void_p]),
    "source_arm": (c_int, [c_void_p, c_size_t]),
    "buffer_get": (c_int, [c_void_p, c_size_t, c_int64, POINTER(Buffer)]),
    "emit": (c_int, [c_void_p, POINTER(Buffer), POINTER(c_int64)]),
    "emit_at": (c_int, [c_void_p, POINTER(Buffer), c_int64, POINTER(c_int64)]),
    "forward": (c_int, [c_void_p, c_void_p, POINTER(Buffer), c_int64, POINTER(c_int64)]),
    "emit_outcome": (c_int, [c_void_p, c_int64]),
    "buffer_abandon": (c_int, [c_void_p, POINTER(Buffer)]),
    "sink_open_with": (c_int, [c_void_p, c_uint64, POINTER(SinkOptions), POINTER(c_void_p)]),
    "sink_close": (None, [c_void_p]),
    "sink_warning": (c_int, [c_void_p, c_char_p, c_size_t]),
    "data_available": (c_int, [c_void_p]),
    "wake": (c_int, [c_void_p]),
    "consume": (c_int, [c_void_p, c_int64, POINTER(Buffer)]),
    "message_information": (c_int, [c_void_p, POINTER(Buffer), POINTER(MessageInfo)]),
    "release": (c_int, [c_void_p, POINTER(Buffer)]),
    "buffer_mapping": (c_int, [c_void_p, POINTER(Buffer), POINTER(c_void_p)]),
    "message_mapping": (c_int, [c_void_p, POINTER(Buffer), POINTER(c_void_p)]),
    "sample_mapping": (c_int, [c_void_p, POINTER(Sample), POINTER(c_void_p)]),
    "mapping_close": (None, [c_void_p]),
    "sink_fd": (c_int, [c_void_p]),
    "sink_arm": (c_int, [c_void_p]),
    "sink_read_counters": (c_int, [c_void_p, POINTER(Counters)]),
    "participant_open": (c_int, [c_void_p, c_char_p, POINTER(c_void_p)]),
    "participant_close": (None, [c_void_p]),
    "topics": (c_int, [c_void_p, c_uint64, c_uint64, TOPIC_CALLBACK, c_void_p]),
    "publisher_open": (c_int, [c_void_p, c_char_p, POINTER(PublisherOptions), POINTER(c_void_p)]),
    "publisher_close": (None, [c_void_p]),
    "publisher_max_message": (c_int, [c_void_p]),
    "publish": (c_int, [c_void_p, c_void_p, c_size_t, c_int64, POINTER(c_int64)]),
    "publish_outcome": (c_int, [c_void_p, c_int64]),
    "publisher_wait_subscriber": (c_int, [c_void_p, c_int64]),
    "publisher_warning": (c_int, [c_void_p, c_char_p, c_size_t]),
    "publisher_lost": (c_int, [c_void_p, POINTER(c_uint64)]),
    "participant_problem": (c_int, [c_void_p, c_char_p, c_size_t]),
    "subscriber_open": (c_int, [c_void_p, c_char_p, POINTER(SubscriberOptions), POINTER(c_void_p)]),
    "subscriber_close": (None, [c_void_p]),
    "take": (c_int, [c_void_p, c_int64, POINTER(Sample)]),
    "sample_release": (c_int, [c_void_p, POINTER(Sample)]),
    "subscriber_wake": (c_int, [c_void_p]),
    "subscriber_fd": (c_int, [c_void_p]),
    "subscriber_arm": (c_int, [c_void_p]),
    "subscriber_warning": (c_int, [c_void_p, c_char_p, c_size_t]),
    "subscriber_prune": (c_int, [c_void_p]),
    "subscriber_read_counters": (c_int, [c_void_p, POINTER(SubscriberCounters)]),
    "video_server_open": (
        c_int,
        [c_void_p, c_char_p, POINTER(VideoFormat), POINTER(VideoServerOptions), POINTER(c_void_p)],
    ),
    "video_server_close": (None, [c_void_p]),
    "video_server_wait_client": (c_int, [c_void_p, c_int64]),
    "video_server_set_format": (c_int, [c_void_p, POINTER(VideoFormat)]),
    "video_send": (c_int, [c_void_p, c_void_p, c_size_t, c_int64, c_int64, POINTER(c_uint64)]),
    "video_client_open": (c_int, [c_void_p, c_char_p, POINTER(VideoClientOptions), POINTER(c_void_p)]),
    "video_client_close": (None, [c_void_p]),
    "video_next": (c_int, [c_void_p, c_int64, POINTER(VideoFrame)]),
    "video_frame_release": (c_int, [c_void_p, POINTER(VideoFrame)]),
    "video_client_wake": (c_int, [c_void_p]),
    "video_client_fd": (c_int, [c_void_p]),
    "video_client_read_counters": (c_int, [c_void_p, POINTER(VideoClientCounters)]),
}

for _name, (_result, _arguments) in _FUNCTIONS.items():
    _function = getattr(lib, f"takt_{_name}")
    _function.restype = _result
    _function.argtypes = _arguments


class Error(OSError):
    """A call of Takt failed. `code` is a TAKT_E_ number, the text names the value at fault and the remedy."""

    code: int = 0

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.code = code or type(self).code


class Disconnected(Error, ConnectionError):
    """The runtime went away; the session re-attaches by itself, repeat the call."""

    code = -1


class WouldBlock(Error, BlockingIOError):
    """No message waits, or no buffer is free."""

    code = -2


class TimedOut(Error, TimeoutError):
    """The time was over."""

    code = -3


class InvalidArgument(Error, ValueError):
    """An argument is out of range."""

    code = -4


class NotPermitted(Error, PermissionError):
    """The policy of the socket does not allow it."""

    code = -5


class TooLarge(Error, ValueError):
    """The message is longer than the session can carry."""

    code = -7


class NoRuntime(Error, ConnectionError):
    """No runtime answers on the socket."""

    code = -14


class Closed(Error):
    """The session, stream, source or sink is closed."""

    code = -16


class Interrupted(Error):
    """Another thread called wake()."""

    code = -17


class NotAvailable(Error):
    """The node does not have what the call names."""

    code = -18


_BY_CODE: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (
        Disconnected, WouldBlock, TimedOut, InvalidArgument, NotPermitted, TooLarge, NoRuntime, Closed, Interrupted,
        NotAvailable,
    )
}


def check(code: int) -> int:
    """The code of a call that went well; raises the error of any other."""
    if code >= 0:
        return code
    text = lib.takt_last_error().decode(errors="replace")
    raise _BY_CODE.get(code, Error)(text, code)
