/*
 * takt.h: the channel API of a C or C++ application.
 *
 * A session attaches the application to the runtime of its node. A stream is a set of quality
 * requirements; within it, sources write channels and sinks read them, on this node or elsewhere.
 * Messages are written and read in place, without copies.
 *
 *     takt_session *session;
 *     takt_stream *stream;
 *     takt_source *source;
 *     takt_buffer buffer;
 *     if (takt_session_open(NULL, &session) || takt_stream_open(session, NULL, &stream) ||
 *         takt_source_open(stream, 7, 0, &source) ||
 *         takt_buffer_get(source, 5, TAKT_FOREVER, &buffer)) {
 *         fprintf(stderr, "%s\n", takt_last_error());
 *         exit(1);
 *     }
 *     memcpy(buffer.data, "hello", 5);
 *     takt_emit(source, &buffer, NULL);
 *
 * Errors. Functions that return int return 0 or more on success and a negative TAKT_E_ code on
 * failure. takt_strerror() has a sentence for each code, takt_last_error() the sentence for what
 * happened last in this thread, with the value at fault and the remedy. A NULL handle or output is
 * TAKT_E_INVALID_ARGUMENT. A handle that was closed must not be used again, as with free().
 *
 * Threads. Sessions and streams may be used by any threads at once. A source or sink is used by one
 * thread at a time; threads open one each. Nothing is tied to the thread that opened it.
 *
 * When the runtime goes away, calls fail with TAKT_E_DISCONNECTED. The session finds the runtime
 * again by itself and opens its streams, sources and sinks again; handles stay valid.
 *
 * The end of the program. What was emitted is sent, however the program ends: with everything closed, by
 * return or exit with nothing closed, by _exit, by a signal. The runtime goes on for 61 s unless its operator
 * says otherwise (limits.linger_ms), and counts what it gives up. A runtime inside the process (see
 * allow_embedded) sends for up to a second at return and exit; after _exit or a signal the rest is lost.
 *
 * fork and exec. A session belongs to the process that opened it: in a forked child every call fails
 * with TAKT_E_FORKED (takt_session_attached() says 0), and the memory of buffers, messages, samples and frames that it inherited
 * is not there: to read or write it ends the child (SIGSEGV). The child may close what it inherited
 * and open a session of its own. All file descriptors are close-on-exec.
 *
 * Stability. What is here stays; structures grow at their end only, and only those that carry a `size`: set it
 * with the _INIT macro. The symbols have the version libtakt.so.0.
 */
#ifndef TAKT_H
#define TAKT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header; takt_version() tells the library's. */
#define TAKT_VERSION_MAJOR 0
#define TAKT_VERSION_MINOR 1
#define TAKT_VERSION_PATCH 0

/* ---- Errors ---------------------------------------------------------------------------------- */

#define TAKT_OK 0
/* The runtime went away during the call; the session re-attaches by itself, repeat the call. */
#define TAKT_E_DISCONNECTED (-1)
/* No message waits, or no buffer is free. */
#define TAKT_E_WOULD_BLOCK (-2)
/* The deadline passed. */
#define TAKT_E_TIMED_OUT (-3)
/* An argument is out of range. */
#define TAKT_E_INVALID_ARGUMENT (-4)
/* The policy of the socket does not allow it. */
#define TAKT_E_NOT_PERMITTED (-5)
/* The arena or the node's memory for it is exhausted. */
#define TAKT_E_NO_MEMORY (-6)
/* The message is longer than the session can carry. */
#define TAKT_E_TOO_LARGE (-7)
/* Application and runtime speak different protocol versions. */
#define TAKT_E_VERSION (-8)
/* The other side broke the protocol. */
#define TAKT_E_PROTOCOL (-9)
/* No such stream, source or sink. */
#define TAKT_E_NOT_FOUND (-10)
/* A limit on streams, sources, sinks or sessions is reached. */
#define TAKT_E_LIMIT (-11)
/* A system call failed. */
#define TAKT_E_SYSTEM (-12)
/* The process forked; a session belongs to the process that opened it. */
#define TAKT_E_FORKED (-13)
/* No runtime answers on the socket. */
#define TAKT_E_NO_RUNTIME (-14)
/* The runtime is shutting down. */
#define TAKT_E_SHUTTING_DOWN (-15)
/* The session was closed, or ended by the runtime. */
#define TAKT_E_CLOSED (-16)
/* A signal handler ran during a wait, or another thread called takt_wake(). */
#define TAKT_E_INTERRUPTED (-17)
/* The node does not have what the call names. */
#define TAKT_E_NOT_AVAILABLE (-18)

/* What a code means and what to do: one line, static. Unknown codes get a line that says so. */
const char *takt_strerror(int code);

/* The sentence for the last failure of a takt function in this thread; "" if there was none. Valid
 * until the next failure in this thread. */
const char *takt_last_error(void);

/* The library's version, as "0.1.0". */
const char *takt_version(void);

/* ---- Waiting --------------------------------------------------------------------------------- */

/* Where a function takes timeout_ns: nanoseconds, or one of these. */
#define TAKT_NOWAIT ((int64_t)0)
#define TAKT_FOREVER ((int64_t)-1)

/* A wait that sleeps when a signal handler runs on its thread returns TAKT_E_INTERRUPTED, whether or not the handler
 * was installed with SA_RESTART. A handler that runs in the microseconds before the sleep is not noticed, as with any
 * blocking call: a program that ends on a signal waits with a timeout, or has another thread call takt_wake(). */

/* ---- Sessions -------------------------------------------------------------------------------- */

typedef struct takt_session takt_session;

/* How to open a session. Start from TAKT_SESSION_OPTIONS_INIT: zero means "as usual" everywhere. */
typedef struct takt_session_options {
    size_t size;                 /* sizeof(takt_session_options) */
    const char *socket;          /* the runtime's socket; NULL: $TAKT_SOCKET, else the default */
    const char *name;            /* a name for operators; NULL: the program's */
    uint64_t tx_bytes;           /* memory for messages on their way out; 0: the runtime's choice */
    uint64_t rx_bytes;           /* memory for received messages; 0: the runtime's choice */
    uint64_t request_timeout_ns; /* how long the runtime may take to answer; 0: 5 s */
    int no_reconnect;            /* nonzero: when the runtime goes away the session is over */
    int allow_embedded;          /* nonzero: if no runtime answers, run one inside this process */
} takt_session_options;

#define TAKT_SESSION_OPTIONS_INIT {sizeof(takt_session_options), NULL, NULL, 0, 0, 0, 0, 0}

/* Attaches to the runtime. `options` may be NULL. On success *session is the new session.
 *
 * With allow_embedded the library libtakt_embedded.so is loaded if no runtime answers: the file
 * that $TAKT_EMBEDDED_LIBRARY names, else the one beside libtakt.so, else as the loader finds it. It runs
 * over kernel UDP without privileges; TAKT_ADDRESS, TAKT_PORT, TAKT_PEERS and TAKT_INTERFACE configure
 * it. Such a session does not reconnect.
 *
 * TAKT_E_NO_RUNTIME: nobody answers. TAKT_E_NOT_PERMITTED, TAKT_E_NO_MEMORY, TAKT_E_LIMIT, TAKT_E_VERSION:
 * the runtime refuses. TAKT_E_SYSTEM. */
int takt_session_open(const takt_session_options *options, takt_session **session);

/* Gives the handle up. The session ends with the last of its streams, sources and sinks; that call
 * waits up to a second for what was emitted to be sent. NULL does nothing. */
void takt_session_close(takt_session *session);

/* Ends the session now, in order, with all its streams, sources and sinks: waits up to a second for what was emitted to
 * be sent. From then on what opens, sends, receives or waits returns TAKT_E_CLOSED, nothing more is received, and their handles are
 * still to be closed. Outcomes, counts, lengths and names can be asked for as before, takt_data_available() is 0, and what wakes,
 * flushes or arms does nothing. Messages that are held, and counters of sinks, can be read as before: the memory is given back when the last
 * of these messages is released and the sinks are closed. */
int takt_session_end(takt_session *session);

/* 1 if the session is attached to a runtime at this moment, 0 if not. */
int takt_session_attached(const takt_session *session);

/* ---- Streams --------------------------------------------------------------------------------- */

typedef struct takt_stream takt_stream;

enum takt_acceleration {
    TAKT_SLOW = 0, /* kernel networking suffices */
    TAKT_FAST = 1  /* bypass the kernel's network stack where the node can */
};

enum takt_resource_use {
    TAKT_FRUGAL = 0,   /* sleep when idle; a wait polls for microseconds at most */
    TAKT_UNLIMITED = 1 /* cores may spin, and a technology that must poll may be chosen */
};

enum takt_time_sensitivity {
    TAKT_BEST_EFFORT = 0,   /* first in, first out, as soon as emitted */
    TAKT_TIME_SENSITIVE = 1 /* scheduled in traffic_class */
};

enum takt_reliability {
    TAKT_SENT_ONCE = 0, /* what is lost is counted */
    TAKT_RELIABLE = 1,  /* in order, and sent again until every sink has it */
    TAKT_LATEST = 2     /* in order, and sent again until every sink's node has it or a newer one is emitted, which never
                         * waits: for states, of which only the newest counts. Open the sinks with `latest` */
};

/* What a reliable source does about a sink that has no room. */
enum takt_slow_sinks {
    TAKT_EVICT_SLOW = 0,    /* waits for patience_ns; then the sink does without, until it has room again */
    TAKT_WAIT_FOR_SLOW = 1, /* waits, and all other sinks with it */
    TAKT_DROP_FOR_SLOW = 2  /* the sink does without what it has no room for */
};

/* The quality requirements of a stream. Start from TAKT_QOS_INIT, which is what costs least. Reliability is the
 * matter of the sources: sinks get what the sources of their channel promise. */
typedef struct takt_qos {
    size_t size;          /* sizeof(takt_qos) */
    int acceleration;     /* enum takt_acceleration */
    int resource_use;     /* enum takt_resource_use */
    int time_sensitivity; /* enum takt_time_sensitivity */
    int traffic_class;    /* 0 to 7 (IEEE 802.1Q), for TAKT_TIME_SENSITIVE */
    int reliability;      /* enum takt_reliability */
    int slow_sinks;       /* enum takt_slow_sinks, for TAKT_RELIABLE */
    uint64_t deadline_ns; /* for TAKT_RELIABLE: sent again only if it can arrive this long after takt_emit(); 0: always */
    uint64_t patience_ns; /* for TAKT_EVICT_SLOW; 0: 10 s. Both are an hour at most */
    const char *datapath; /* this one and no other, such as "xdp", whatever the acceleration: the stream is refused where
                           * the node has it not (TAKT_E_NOT_AVAILABLE), and its messages reach no node that it does not
                           * reach. NULL: the node chooses. The other requirements hold as well */
} takt_qos;

#define TAKT_QOS_INIT \
    {sizeof(takt_qos), TAKT_SLOW, TAKT_FRUGAL, TAKT_BEST_EFFORT, 0, TAKT_SENT_ONCE, TAKT_EVICT_SLOW, 0, 0, NULL}

/* Opens a stream. `qos` may be NULL: TAKT_QOS_INIT. The requirements are wishes: see
 * takt_stream_warning(), but for the datapath that is named. TAKT_E_INVALID_ARGUMENT, TAKT_E_NOT_AVAILABLE,
 * TAKT_E_NOT_PERMITTED, TAKT_E_LIMIT. */
int takt_stream_open(takt_session *session, const takt_qos *qos, takt_stream **stream);

/* Gives the handle up; the stream closes with the last of its sources and sinks. NULL does nothing. */
void takt_stream_close(takt_stream *stream);

/* The name of the datapath that carries the stream now. Writes at most `size` bytes to `text`, ending in
 * NUL, and returns the length of the whole name, as snprintf() does; `text` may be NULL if `size` is 0.
 * It becomes another one when the runtime has come back, when the node's mapping changes, or when a datapath comes or goes. */
int takt_stream_datapath(const takt_stream *stream, char *text, size_t size);

/* Why the datapath is not what was asked for, in the same manner; length 0 if it is. */
int takt_stream_warning(const takt_stream *stream, char *text, size_t size);

/* ---- Buffers --------------------------------------------------------------------------------- */

/* A message to be written or just received: memory lent by the library. Passed by address; `data`
 * may be written up to `length` while it is yours to send, and only read when received. The
 * reserved words name its owner: copy the structure as a whole or not at all. */
typedef struct takt_buffer {
    void *data;
    size_t length;
    uint64_t reserved[2];
} takt_buffer;

/* What the runtime says of a received message. Start from TAKT_MESSAGE_INFO_INIT. */
typedef struct takt_message_info {
    size_t size;          /* sizeof(takt_message_info) */
    uint64_t sequence;    /* its number on its channel at its sender; a gap is a loss */
    int64_t send_time_ns; /* when the sender's runtime took it, TAI nanoseconds */
    uint32_t sender;      /* the sender, under a number that is random at each start */
    uint32_t traffic_class;
} takt_message_info;

#define TAKT_MESSAGE_INFO_INIT {sizeof(takt_message_info), 0, 0, 0, 0}

/* ---- Sources --------------------------------------------------------------------------------- */

typedef struct takt_source takt_source;

/* What became of an emitted message. Delivery is at most once, and acknowledged on reliable streams only: there a
 * message is pending until every sink has it. */
enum takt_outcome {
    TAKT_PENDING = 0,     /* on its way, or held by a sink of this very session */
    TAKT_SENT = 1,        /* handed to all local sinks, and to the network for all remote ones */
    TAKT_NO_SINK = 2,     /* no sink was known on the channel */
    TAKT_UNREACHABLE = 3, /* at least one remote sink could not be reached at that moment */
    TAKT_LOST = 4,        /* the runtime went away before it told */
    TAKT_UNKNOWN = 5,     /* too long ago, or never emitted */
    TAKT_LATE = 6,        /* its launch time had passed or could not be met: not sent to remote sinks */
    TAKT_NOT_SCHEDULED = 7, /* its launch time is more than 60 s ahead, or no window of its class is long
                               enough: not sent to remote sinks */
    TAKT_REFUSED = 8,       /* outside what the operator has declared of the tenant's streams: not sent to
                               remote sinks */
    TAKT_UNDELIVERED = 9    /* reliable, and at least one sink does without it: its deadline has passed, or the
                               sink or its node took nothing for too long, or went */
};

/* Opens a source: the writing end of `channel`. `depth`: most messages between takt_buffer_get() and
 * completion, a power of two up to 65536; 0: 1024. TAKT_E_NOT_PERMITTED, TAKT_E_NO_MEMORY, TAKT_E_LIMIT,
 * TAKT_E_INVALID_ARGUMENT. */
int takt_source_open(takt_stream *stream, uint64_t channel, uint32_t depth, takt_source **source);

/* How to open a source. Start from TAKT_SOURCE_OPTIONS_INIT. */
typedef struct takt_source_options {
    size_t size;    /* sizeof(takt_source_options) */
    uint32_t depth; /* as of takt_source_open() */
    int notify_fd;  /* nonzero: a descriptor for an event loop is wanted, which tells of room. In a trust domain such a source
                     * gives its messages to the runtime */
} takt_source_options;

#define TAKT_SOURCE_OPTIONS_INIT {sizeof(takt_source_options), 0, 0}

/* As takt_source_open(), with all options. `options` may be NULL. TAKT_E_NOT_AVAILABLE with `notify_fd` and a runtime of an
 * older release. */
int takt_source_open_with(takt_stream *stream, uint64_t channel, const takt_source_options *options,
                          takt_source **source);

/* Closes a source. What was emitted is still sent; buffers that are out become invalid. NULL does
 * nothing. */
void takt_source_close(takt_source *source);

/* Whether sinks of this node get messages with a launch time at once, from the next one on: not if nothing
 * is said. */
int takt_source_at_once_here(takt_source *source, int at_once);

/* Longest message in bytes, or an error; beyond INT_MAX it is INT_MAX. */
int takt_source_max_message(const takt_source *source);

/* Messages whose outcome the runtime did not tell before it went away. */
int takt_source_lost(const takt_source *source, uint64_t *count);

/* Waits until the channel has a reader: a sink on this node or another that gets what is emitted from now on. How many
 * there are; lanes of other nodes count as one each. TAKT_E_WOULD_BLOCK with TAKT_NOWAIT and none,
 * TAKT_E_TIMED_OUT, TAKT_E_INTERRUPTED. */
int takt_source_wait_reader(takt_source *source, int64_t timeout_ns);

/* The descriptor for an event loop, if it was asked for: the same one for the source's whole life, owned by
 * the source. Loop: takt_buffer_get(TAKT_NOWAIT) until TAKT_E_WOULD_BLOCK or TAKT_E_DISCONNECTED; takt_source_arm();
 * if that returns 1 wait until the descriptor is readable, and begin anew. */
int takt_source_fd(const takt_source *source);

/* 1: the descriptor becomes readable, once, when there may be room for a message of `length` bytes, or with the next change
 * of the session. 0: there is room already, or an error to be told. Room comes as messages are complete, of this
 * source or of others of the session, whose memory it is, and as buffers are abandoned. Of what sinks of a trust domain give
 * back to other sources of the session it is told when those emit. */
int takt_source_arm(takt_source *source, size_t length);

/* The wait of this source that is under way, or the next one if none is, returns TAKT_E_INTERRUPTED. From any thread,
 * while the source is open; not from signal handlers. */
int takt_wake_source(takt_source *source);

/* A buffer of `length` bytes in the memory that is sent from, with arbitrary content. Yours until it
 * is emitted or abandoned; several may be out. TAKT_E_WOULD_BLOCK with TAKT_NOWAIT and none free,
 * TAKT_E_TIMED_OUT, TAKT_E_INTERRUPTED, TAKT_E_TOO_LARGE. */
int takt_buffer_get(takt_source *source, size_t length, int64_t timeout_ns, takt_buffer *buffer);

/* Sends the first buffer->length bytes as one message: make that smaller to send less. Never blocks.
 * On success *token, if `token` is not NULL, names the message for takt_emit_outcome(). In any case but
 * TAKT_E_INVALID_ARGUMENT and TAKT_E_TOO_LARGE the buffer is gone and *buffer is cleared; do not touch
 * the data again. */
int takt_emit(takt_source *source, takt_buffer *buffer, int64_t *token);

/* As takt_emit(), at `launch_time_ns` (TAI), not as soon as possible: then it is sent to remote sinks, and
 * sinks of this node get it. takt_emit_outcome() tells whether that was possible. */
int takt_emit_at(takt_source *source, takt_buffer *buffer, int64_t launch_time_ns, int64_t *token);

/* As takt_emit(), with more to follow at once: the runtime is told by the next takt_emit() or
 * takt_flush(). Saves a little for each message of a burst. */
int takt_emit_more(takt_source *source, takt_buffer *buffer, int64_t *token);

/* Copies `length` bytes from anywhere, also from a received message that is still needed, and sends them:
 * takt_buffer_get(), a copy, takt_emit(). */
int takt_emit_copy(takt_source *source, const void *data, size_t length, int64_t timeout_ns,
                   int64_t *token);

/* Tells the runtime of what takt_emit_more() has left behind. */
int takt_flush(takt_source *source);

/* An enum takt_outcome, or an error. Known for at least the latest 2 x depth messages. */
int takt_emit_outcome(takt_source *source, int64_t token);

/* Gives a buffer back without sending it, and clears *buffer. */
int takt_buffer_abandon(takt_source *source, takt_buffer *buffer);

/* ---- Sinks ----------------------------------------------------------------------------------- */

typedef struct takt_sink takt_sink;

/* Called with every message, on a thread of the sink's own. The message is released on return; it may
 * not be released or kept. Any function may be called, and takt_sink_close() of this sink as the last
 * thing. Signals are blocked on that thread. */
typedef void (*takt_callback)(void *user, const takt_buffer *message, const takt_message_info *info);

/* How to open a sink. Start from TAKT_SINK_OPTIONS_INIT. */
typedef struct takt_sink_options {
    size_t size;            /* sizeof(takt_sink_options) */
    takt_callback callback; /* NULL: the application consumes */
    void *user;             /* handed to the callback */
    uint32_t depth;         /* most messages waiting or held, a power of two up to 65536; 0: 1024, or 16 with latest */
    int notify_fd;          /* nonzero: a descriptor for an event loop is wanted */
    int no_local;           /* nonzero: what this very session emits is not for this sink */
    int latest;             /* nonzero: the newest message alone, which takes the place of one that was not consumed */
} takt_sink_options;

#define TAKT_SINK_OPTIONS_INIT {sizeof(takt_sink_options), NULL, NULL, 0, 0, 0, 0}

/* Opens a sink: a reading end of `channel`, which gets every message from now on. With `callback` the
 * library calls it; with NULL the application calls takt_consume(). TAKT_E_NOT_PERMITTED,
 * TAKT_E_NO_MEMORY, TAKT_E_LIMIT, TAKT_E_INVALID_ARGUMENT. */
int takt_sink_open(takt_stream *stream, uint64_t channel, takt_callback callback, void *user,
                   takt_sink **sink);

/* As takt_sink_open(), with all options. `options` may be NULL. */
int takt_sink_open_with(takt_stream *stream, uint64_t channel, const takt_sink_options *options,
                        takt_sink **sink);

/* Closes a sink. Messages that are held become invalid. With a callback it waits for the callback to
 * return, unless it is called from there. NULL does nothing. */
void takt_sink_close(takt_sink *sink);

/* What the memory for received messages cannot do for this sink, and what to ask for instead, in the manner of
 * takt_stream_datapath(); length 0 if nothing. */
int takt_sink_warning(const takt_sink *sink, char *text, size_t size);

/* How many messages wait. */
int takt_data_available(takt_sink *sink);

/* Waits until a message is there, and leaves it there: how many are. As takt_consume(). */
int takt_sink_wait(takt_sink *sink, int64_t timeout_ns);

/* The wait of this sink that is under way, or the next one if none is, returns TAKT_E_INTERRUPTED. From any thread,
 * while the sink is open; not from signal handlers. */
int takt_wake(takt_sink *sink);

/* The next message. Yours to read until takt_release(); several may be held, at most `depth`, and while
 * they are, their memory is not there for others. TAKT_E_WOULD_BLOCK with TAKT_NOWAIT and none waiting,
 * TAKT_E_TIMED_OUT, TAKT_E_INTERRUPTED. */
int takt_consume(takt_sink *sink, int64_t timeout_ns, takt_buffer *message);

/* What the runtime says of a message that is held. */
int takt_message_information(const takt_sink *sink, const takt_buffer *message,
                             takt_message_info *info);

/* Gives a message back and clears *message. */
int takt_release(takt_sink *sink, takt_buffer *message);

/* Sends the first message->length bytes of a message that was received at `sink`, and gives it up. Where source and sink are
 * of one session it is not copied: it is sent from the memory that it was received into. Otherwise, or if this session
 * had emitted it, it is copied. Waits for room as takt_buffer_get() does. On success *message is cleared; on failure the
 * message is held as before. Not for messages of a callback: takt_emit_copy(). */
int takt_forward(takt_source *source, takt_sink *sink, takt_buffer *message, int64_t timeout_ns,
                 int64_t *token);

/* What keeps the memory where a buffer, message or sample lies mapped, for those who cannot keep others from reading it later,
 * such as bindings: until takt_mapping_close() it can be read also after the buffer was emitted or the message released, when
 * the runtime has come back, and when sessions have ended. Its content is arbitrary then. */
typedef struct takt_mapping takt_mapping;
int takt_buffer_mapping(const takt_source *source, const takt_buffer *buffer, takt_mapping **mapping);
int takt_message_mapping(const takt_sink *sink, const takt_buffer *message, takt_mapping **mapping);

/* Gives it up, from any thread. NULL does nothing. */
void takt_mapping_close(takt_mapping *mapping);

/* The descriptor for an event loop, if it was asked for: the same one for the sink's whole life, owned by
 * the sink. Loop: takt_consume(TAKT_NOWAIT) until TAKT_E_WOULD_BLOCK or TAKT_E_DISCONNECTED; takt_sink_arm();
 * if that returns 1 wait until the descriptor is readable, and begin anew. */
int takt_sink_fd(const takt_sink *sink);

/* 1: the descriptor becomes readable with the next message or change of the session, once.
 * 0: there is something to consume already. */
int takt_sink_arm(takt_sink *sink);

/* What happened to a sink's messages since it was opened. Start from TAKT_SINK_COUNTERS_INIT. */
typedef struct takt_sink_counters {
    size_t size;                 /* sizeof(takt_sink_counters) */
    uint64_t delivered;          /* put into the sink */
    uint64_t dropped_full;       /* dropped: depth messages were waiting or held */
    uint64_t dropped_memory;     /* dropped: no memory for received messages */
    uint64_t lost;               /* sent and never arrived, by gaps in the sequence */
    uint64_t lost_at_disconnect; /* the same for the time without a runtime; not counted with `latest` */
    uint64_t superseded;         /* delivered, and replaced by newer ones before they were consumed: `latest` */
} takt_sink_counters;

#define TAKT_SINK_COUNTERS_INIT {sizeof(takt_sink_counters), 0, 0, 0, 0, 0, 0}

/* Reads the counters of a sink that has no callback. */
int takt_sink_read_counters(const takt_sink *sink, takt_sink_counters *counters);

/* Why a callback will not be called any more, as an error code; 0 if it will. */
int takt_sink_failure(const takt_sink *sink);

/* ---- Topics ---------------------------------------------------------------------------------- */

/* Publish and subscribe by name, on the channels above (docs/reference/topics.md). A topic is a name in levels, such as
 * plant/7/temperature. Subscribers may ask by a pattern: `*` stands for one level, `**` for any number of them.
 * Participants, publishers and subscribers are used as sessions, sources and sinks are. */

/* A program's place among those that publish and subscribe. */
typedef struct takt_participant takt_participant;
typedef struct takt_publisher takt_publisher;
typedef struct takt_subscriber takt_subscriber;

/* Takes part. `name` is what others see in their lists; NULL: the program's. The handles of the participant, its publishers
 * and subscribers are closed in any order. Errors as takt_stream_open(). */
int takt_participant_open(takt_session *session, const char *name, takt_participant **participant);

/* Gives the handle up. NULL does nothing. */
void takt_participant_close(takt_participant *participant);

/* A topic, with how many write and read it. */
typedef struct takt_topic {
    const char *name;
    uint32_t publishers;
    uint32_t subscribers;
} takt_topic;

typedef void (*takt_topic_callback)(void *user, const takt_topic *topic);

/* Waits until nothing new has been heard of for `quiet_ns`, `most_ns` at the longest; then calls `callback` with each
 * topic, in the order of their names. How many there are. TAKT_E_NOT_PERMITTED: the policy of the socket keeps the
 * participant from the directory of topics. */
int takt_topics(takt_participant *participant, uint64_t quiet_ns, uint64_t most_ns,
                takt_topic_callback callback, void *user);

/* Why others do not hear of the participant's topics, or not of all, and how many late joiners did not get all that its
 * publishers keep, in the manner of takt_stream_datapath(); length 0 if nothing is wrong. */
int takt_participant_problem(const takt_participant *participant, char *text, size_t size);

/* How the messages of a topic are to be read: declared, not checked. From TAKT_OWN_ENCODING on they are the programs' own. */
enum takt_encoding {
    TAKT_BYTES = 0,
    TAKT_TEXT = 1,
    TAKT_JSON = 2,
    TAKT_CBOR = 3,
    TAKT_SLICES = 4, /* of frames, see below */
    TAKT_OWN_ENCODING = 256
};

/* How to open a publisher. Start from TAKT_PUBLISHER_OPTIONS_INIT. */
typedef struct takt_publisher_options {
    size_t size;          /* sizeof(takt_publisher_options) */
    const takt_qos *qos;  /* NULL: TAKT_QOS_INIT */
    uint32_t depth;       /* most messages on their way, a power of two up to 65536; 0: 256 */
    uint32_t history;     /* how many of its last messages it keeps for late joiners, 65536 at most; with it the longest
                           * message is shorter by the topic's name and one byte (TAKT_E_TOO_LARGE) */
    int encoding;         /* enum takt_encoding, or a number of the programs' own up to 65535 */
    size_t history_bytes; /* how many bytes of them, with 24 more of each; 0: 64 MiB. The newest one is always kept */
} takt_publisher_options;

#define TAKT_PUBLISHER_OPTIONS_INIT {sizeof(takt_publisher_options), NULL, 0, 0, TAKT_BYTES, 0}

/* Opens a publisher of a topic. `options` may be NULL. TAKT_E_INVALID_ARGUMENT also for a name that is none; otherwise as
 * takt_source_open(). */
int takt_publisher_open(takt_participant *participant, const char *topic,
                        const takt_publisher_options *options, takt_publisher **publisher);

/* Closes a publisher. What was published is still sent, what it has kept is gone. NULL does nothing. */
void takt_publisher_close(takt_publisher *publisher);

/* Longest message in bytes, or an error: a little less than takt_source_max_message(), and with history by the topic's name
 * less again. Beyond INT_MAX it is INT_MAX. */
int takt_publisher_max_message(const takt_publisher *publisher);

/* Publishes `length` bytes from anywhere. *token, if `token` is not NULL, names the message for takt_publish_outcome().
 * Waits for memory as takt_buffer_get() does. */
int takt_publish(takt_publisher *publisher, const void *data, size_t length, int64_t timeout_ns,
                 int64_t *token);

/* Writes a message of at most `most` bytes where it is sent from, and returns how many it has. */
typedef size_t (*takt_fill)(void *user, void *memory, size_t most);

/* Publishes what `fill` writes: it is called once, when there is memory, and not at all if this fails before. If it returns
 * more than `most`, nothing is published: TAKT_E_INVALID_ARGUMENT. */
int takt_publish_fill(takt_publisher *publisher, size_t most, int64_t timeout_ns, takt_fill fill,
                      void *user, int64_t *token);

/* An enum takt_outcome, or an error, as takt_emit_outcome(). */
int takt_publish_outcome(takt_publisher *publisher, int64_t token);

/* Messages whose outcome the runtime did not tell before it went away. */
int takt_publisher_lost(const takt_publisher *publisher, uint64_t *count);

/* Waits until the topic has a subscriber, as takt_source_wait_reader(). */
int takt_publisher_wait_subscriber(takt_publisher *publisher, int64_t timeout_ns);

/* Why its datapath is not what was asked for, and which topic of another participant has the same channel, in the manner of
 * takt_stream_datapath(); length 0 if neither. */
int takt_publisher_warning(const takt_publisher *publisher, char *text, size_t size);

/* A message of a topic: yours to read until takt_sample_release(). Copy the structure as a whole or not at all. */
typedef struct takt_sample {
    const void *data;
    size_t length;
    const char *topic;    /* stays until the subscriber is closed */
    uint64_t number;      /* of the message among those of its publisher, from 0; a gap is a loss */
    int64_t send_time_ns; /* when the publisher's runtime took it, if it was kept when it took it again, TAI nanoseconds */
    uint32_t publisher;   /* random at each opening */
    uint16_t encoding;    /* as its publisher declares */
    uint16_t kept;        /* 1: published before the subscriber joined. It may come after later ones */
    uint64_t reserved[2];
} takt_sample;

/* Called with every message, on a thread of the subscriber's own, as takt_callback. */
typedef void (*takt_sample_callback)(void *user, const takt_sample *sample);

/* How to open a subscriber. Start from TAKT_SUBSCRIBER_OPTIONS_INIT. */
typedef struct takt_subscriber_options {
    size_t size;                   /* sizeof(takt_subscriber_options) */
    const takt_qos *qos;           /* NULL: TAKT_QOS_INIT. Reliability is the matter of publishers */
    takt_sample_callback callback; /* NULL: the application takes */
    void *user;                    /* handed to the callback */
    uint32_t depth;                /* most messages of a topic waiting or held, a power of two up to 65536; 0: 256 */
    uint32_t history;              /* how many of the last messages of each publisher it wants to begin with */
    int notify_fd;                 /* nonzero: a descriptor for an event loop is wanted */
    int no_local;                  /* nonzero: what this very session publishes is not for this subscriber */
    int latest;                    /* nonzero: the newest message of a topic alone, as of takt_sink_options; depth 0 is 16 */
} takt_subscriber_options;

#define TAKT_SUBSCRIBER_OPTIONS_INIT {sizeof(takt_subscriber_options), NULL, NULL, NULL, 0, 0, 0, 0, 0}

/* Opens a subscriber of a topic, or of all topics that a pattern matches. `options` may be NULL. A pattern, and history,
 * are TAKT_E_NOT_PERMITTED where the policy of the socket keeps the participant from the directory of topics;
 * TAKT_E_INVALID_ARGUMENT also for a name that is none; otherwise as takt_sink_open(). */
int takt_subscriber_open(takt_participant *participant, const char *topic,
                         const takt_subscriber_options *options, takt_subscriber **subscriber);

/* Closes a subscriber. Samples that are held become invalid. With a callback it waits for the callback to return, unless it
 * is called from there. NULL does nothing. */
void takt_subscriber_close(takt_subscriber *subscriber);

/* The next message, as takt_consume(). */
int takt_take(takt_subscriber *subscriber, int64_t timeout_ns, takt_sample *sample);

/* Gives a message back and clears *sample. */
int takt_sample_release(takt_subscriber *subscriber, takt_sample *sample);

/* As takt_message_mapping(). */
int takt_sample_mapping(const takt_subscriber *subscriber, const takt_sample *sample, takt_mapping **mapping);

/* The wait that is under way, or the next one if none is, returns TAKT_E_INTERRUPTED. From any thread. */
int takt_subscriber_wake(takt_subscriber *subscriber);

/* The descriptor for an event loop, and asking for it to become readable: as takt_sink_fd() and takt_sink_arm(). */
int takt_subscriber_fd(const takt_subscriber *subscriber);
int takt_subscriber_arm(takt_subscriber *subscriber);

/* What a subscriber without a callback does not get, if anything, and why: topics of a pattern that could not be opened, and a
 * topic with the same channel as one that it reads. In the manner of takt_stream_datapath(); length 0 if nothing. */
int takt_subscriber_warning(const takt_subscriber *subscriber, char *text, size_t size);

/* Gives back the channels of topics that a pattern has matched and that have had no publisher for ten seconds; how many there
 * were. Without it a pattern holds a channel for each topic that it has ever read; with a callback it happens by itself. Call it
 * now and then, such as when takt_take() has timed out: it costs next to nothing while no topic comes or goes.
 * TAKT_E_INVALID_ARGUMENT while samples are held. */
int takt_subscriber_prune(takt_subscriber *subscriber);

/* What happened to a subscriber's messages since it was opened. Start from TAKT_SUBSCRIBER_COUNTERS_INIT. */
typedef struct takt_subscriber_counters {
    size_t size;                 /* sizeof(takt_subscriber_counters) */
    takt_sink_counters channels; /* of its channels */
    uint64_t foreign;            /* refused: written by another topic with the same channel */
    uint64_t malformed;          /* refused: no publisher has written it */
    uint64_t unopened;           /* topics that a pattern matched and that could not be opened */
} takt_subscriber_counters;

#define TAKT_SUBSCRIBER_COUNTERS_INIT {sizeof(takt_subscriber_counters), TAKT_SINK_COUNTERS_INIT, 0, 0, 0}

/* Reads the counters of a subscriber that has no callback. */
int takt_subscriber_read_counters(takt_subscriber *subscriber, takt_subscriber_counters *counters);

/* Why a callback will not be called any more, as an error code; 0 if it will. */
int takt_subscriber_failure(const takt_subscriber *subscriber);

/* ---- Streams of frames ------------------------------------------------------------------------- */

/* Raw frames, as cameras make them, on the topics above (docs/reference/streams.md): a server cuts each frame into slices and
 * publishes them, any number of clients put the frames together again, each at its own pace. A stream has a name as topics
 * have; `takt stream` serves and views it, too. Handles are closed in any order; servers and clients are used by one thread
 * at a time, but for takt_video_client_wake(). */

typedef struct takt_video_server takt_video_server;
typedef struct takt_video_client takt_video_client;

/* What lies where a pixel is, 8 bits each, line after line without gaps. UYVY: two pixels in four bytes, the width is even. */
enum takt_pixels {
    TAKT_PIXELS_BYTES = 0, /* nothing is said of the bytes of a frame: width is their number, height is 1 */
    TAKT_PIXELS_RGB = 1,
    TAKT_PIXELS_RGBA = 2,
    TAKT_PIXELS_BGR = 3,
    TAKT_PIXELS_BGRA = 4,
    TAKT_PIXELS_UYVY = 5,
    TAKT_PIXELS_GRAY = 6
};

/* What a frame is: width * height pixels, 4 GiB at most. */
typedef struct takt_video_format {
    int pixels; /* enum takt_pixels */
    uint32_t width;
    uint32_t height;
} takt_video_format;

/* How to open a server. Start from TAKT_VIDEO_SERVER_OPTIONS_INIT. */
typedef struct takt_video_server_options {
    size_t size;         /* sizeof(takt_video_server_options) */
    const takt_qos *qos; /* NULL: TAKT_QOS_INIT. Its reliability says what becomes of slices that are lost */
    uint64_t period_ns;  /* from frame to frame, at most 4.2 s; 0: unknown */
    int spread;          /* nonzero: slices are launched at even distances over nine tenths of the period */
    uint32_t slice;      /* bytes of a slice, 256 to 1048576; 0: whole lines, of 8 KiB or less if spread, else of 32 KiB */
    uint32_t depth;      /* most slices on their way, a power of two up to 65536; 0: two frames of the first format, 64 to 1024 */
} takt_video_server_options;

#define TAKT_VIDEO_SERVER_OPTIONS_INIT {sizeof(takt_video_server_options), NULL, 0, 0, 0, 0}

/* Opens the stream of this name. `options` may be NULL. Errors as takt_publisher_open(). */
int takt_video_server_open(takt_participant *participant, const char *stream,
                           const takt_video_format *format,
                           const takt_video_server_options *options, takt_video_server **server);

/* Closes a server, and tells clients that the stream has ended. NULL does nothing. */
void takt_video_server_close(takt_video_server *server);

/* Waits until the stream has a client, as takt_source_wait_reader(). */
int takt_video_server_wait_client(takt_video_server *server, int64_t timeout_ns);

/* The frames that follow are of this format. */
int takt_video_server_set_format(takt_video_server *server, const takt_video_format *format);

/* Sends a frame of `length` bytes, which was captured at `captured_ns` (TAI; 0: now). Its number, from 0, in *number if that
 * is not NULL. Waits for memory, and if the stream is spread also for launch times, `timeout_ns` for the whole frame: if that
 * was too short, what has been sent of the frame is not followed by the rest, and clients drop it. */
int takt_video_send(takt_video_server *server, const void *frame, size_t length,
                    int64_t captured_ns, int64_t timeout_ns, uint64_t *number);

/* Writes the `length` bytes of a frame that begin at `offset`. */
typedef void (*takt_video_fill)(void *user, size_t offset, void *memory, size_t length);

/* As takt_video_send(), of a frame that `fill` writes where it is sent from: called once for each slice, in order. It must not
 * call functions of this server. */
int takt_video_send_fill(takt_video_server *server, int64_t captured_ns, int64_t timeout_ns,
                         takt_video_fill fill, void *user, uint64_t *number);

/* How to open a client. Start from TAKT_VIDEO_CLIENT_OPTIONS_INIT. */
typedef struct takt_video_client_options {
    size_t size;         /* sizeof(takt_video_client_options) */
    const takt_qos *qos; /* NULL: TAKT_QOS_INIT. Reliability is the matter of servers */
    int all;             /* 0: while the application is busy the latest frame is kept. Nonzero: all, up to `frames`; then no
                          * slices are taken, and what comes waits or is lost as the server's quality has it */
    int holes;           /* nonzero: frames that lack slices are delivered, too */
    uint32_t frames;     /* most frames that wait or are held, 1024 at most; 0: 4 */
    uint32_t depth;      /* most slices that wait until they are put into their frame, a power of two up to 65536; 0: 4096 */
    size_t most_bytes;   /* longest frame that is taken; 0: 256 MiB */
    size_t memory;       /* bytes of memory for frames, those that wait, are held or are under way together; 0: 1 GiB, or what
                          * three of the longest frames need, if that is more. A frame that does not fit is passed over */
} takt_video_client_options;

#define TAKT_VIDEO_CLIENT_OPTIONS_INIT {sizeof(takt_video_client_options), NULL, 0, 0, 0, 0, 0, 0}

/* Connects to the stream of this name, whether or not it has a server yet, and starts a thread that puts frames together.
 * `options` may be NULL. Errors as takt_subscriber_open(). */
int takt_video_client_open(takt_participant *participant, const char *stream,
                           const takt_video_client_options *options, takt_video_client **client);

/* Closes a client. Frames that are held become invalid. NULL does nothing. */
void takt_video_client_close(takt_video_client *client);

/* Bytes from `begin` to before `end`. */
typedef struct takt_video_hole {
    size_t begin;
    size_t end;
} takt_video_hole;

/* A frame: yours to read until takt_video_frame_release(). Copy the structure as a whole or not at all. */
typedef struct takt_video_frame {
    const void *data;
    size_t length;
    takt_video_format format;
    uint32_t period_ns;           /* from frame to frame; 0: unknown */
    uint64_t number;              /* of the frame among those of its server, from 0 */
    int64_t captured_ns;          /* by the server's TAI clock */
    int64_t completed_ns;         /* when its last slice was in place, by this node's TAI clock */
    const takt_video_hole *holes; /* what is missing, in order; its content is arbitrary */
    size_t hole_count;
    uint64_t reserved[2];
} takt_video_frame;

/* 0: the next frame is in *frame. 1: the server has ended the stream, once; frames of another may follow. TAKT_E_WOULD_BLOCK
 * with TAKT_NOWAIT and none, TAKT_E_TIMED_OUT, TAKT_E_INTERRUPTED, TAKT_E_CLOSED. */
int takt_video_next(takt_video_client *client, int64_t timeout_ns, takt_video_frame *frame);

/* Gives a frame back and clears *frame. */
int takt_video_frame_release(takt_video_client *client, takt_video_frame *frame);

/* The wait that is under way, or the next one if none is, returns TAKT_E_INTERRUPTED. From any thread. */
int takt_video_client_wake(takt_video_client *client);

/* A descriptor that is readable while takt_video_next() has something to say. */
int takt_video_client_fd(const takt_video_client *client);

/* What happened to frames since the client was opened. Start from TAKT_VIDEO_CLIENT_COUNTERS_INIT. */
typedef struct takt_video_client_counters {
    size_t size;                     /* sizeof(takt_video_client_counters) */
    uint64_t frames;                 /* delivered */
    uint64_t with_holes;             /* of these, frames that lack slices */
    uint64_t incomplete;             /* dropped, because slices were lost */
    uint64_t lost;                   /* of which no slice came */
    uint64_t skipped;                /* whole ones for which the application was too slow */
    uint64_t too_large;              /* longer than `most_bytes` */
    uint64_t late;                   /* slices that came twice, or after their frame had been given up */
    uint64_t other_server;           /* slices of another server of the same stream */
    takt_subscriber_counters slices; /* of the slices, as messages of a topic */
    uint64_t no_memory;              /* frames for which there was no memory: all was in use, or the system had none */
} takt_video_client_counters;

#define TAKT_VIDEO_CLIENT_COUNTERS_INIT \
    {sizeof(takt_video_client_counters), 0, 0, 0, 0, 0, 0, 0, 0, TAKT_SUBSCRIBER_COUNTERS_INIT, 0}

/* Reads the counters of a client; those of slices are as they were when it last took one. */
int takt_video_client_read_counters(const takt_video_client *client,
                                    takt_video_client_counters *counters);

#ifdef __cplusplus
}
#endif

#endif /* TAKT_H */
