/*
 * insane.h: the interface of INSANE under its own names (naaas-thesis-2024, figure 6.7), over takt.h.
 *
 * For programs that were written from the figure. New programs use takt.h, which tells more: why
 * something failed, how long to wait, which datapath was chosen. Programs of the public INSANE repositories, which
 * have other names: define INSANE_COMPAT before this header is included, see insane_compat.h.
 *
 * The figure gives the signatures; what it leaves open is settled here:
 * - One session per process: init_session() opens it. close_session() sends what was emitted, for up to a second, and
 *   ends the session with everything in it: what is used afterwards is refused with TAKT_E_CLOSED. Both return 0, or a
 *   negative TAKT_E_ code. A program that ends without close_session() loses nothing either, see takt.h.
 * - stream_t, source_t and sink_t are pointers, NULL on failure; then takt_last_error() says why.
 * - A buffer_t whose data is NULL is no buffer: get_buffer() and consume_data() failed, or had none. Make `length`
 *   smaller to send less. A buffer of size 0 is an empty message.
 * - emit_data() takes received buffers as well, without a copy (takt_forward()). It returns the id of the message, 0 or
 *   more, or a negative code. check_emit_outcome() returns an enum takt_outcome (0 while the message is on its way) or a
 *   negative code.
 * - data_available() returns how many messages wait, or a negative code; with INSANE_BLOCKING it waits for one.
 * - A signal handler ends a blocking call: get_buffer() and consume_data() return no buffer, data_available()
 *   TAKT_E_INTERRUPTED.
 * - A sink hears the sources of its own process, unless options_t.no_local is set.
 *
 * If no runtime answers on this node, init_session() runs one inside the process (see allow_embedded in
 * takt.h). All files of a program that include this header share the session. For GCC and Clang, C11 or
 * C++; link with -ltakt. Threads and fork: as in takt.h.
 */
#ifndef INSANE_H
#define INSANE_H

#include <stdlib.h>
#include <string.h>

#include "takt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Quality options (section 6.3.2), and three of ours. All zero is what costs least. */
typedef struct options_t {
    int acceleration;     /* datapath acceleration: INSANE_SLOW, INSANE_FAST */
    int resource_use;     /* resource consumption: INSANE_FRUGAL, INSANE_UNLIMITED */
    int time_sensitivity; /* INSANE_BEST_EFFORT, INSANE_TIME_SENSITIVE */
    int traffic_class;    /* 0 to 7, with INSANE_TIME_SENSITIVE */
    unsigned depth;       /* most messages under way at a source, waiting or held at a sink: a power of two up to
                             65536; 0: 1024 */
    int no_local;         /* nonzero: sinks do not hear the sources of this process */
    int reliable;         /* nonzero: in order, and sent again until every sink has it (TAKT_RELIABLE in takt.h) */
} options_t;

#define INSANE_SLOW TAKT_SLOW
#define INSANE_FAST TAKT_FAST
#define INSANE_FRUGAL TAKT_FRUGAL
#define INSANE_UNLIMITED TAKT_UNLIMITED
#define INSANE_BEST_EFFORT TAKT_BEST_EFFORT
#define INSANE_TIME_SENSITIVE TAKT_TIME_SENSITIVE

/* flags of get_buffer(), data_available() and consume_data(). */
#define INSANE_NONBLOCKING 0
#define INSANE_BLOCKING 1

typedef struct insane_stream *stream_t;
typedef struct insane_source *source_t;
typedef struct insane_sink *sink_t;

typedef struct buffer_t {
    void *data;
    size_t length;
    takt_buffer lent; /* the library's */
    sink_t sink;      /* of a received one: where it is to be released */
} buffer_t;

/* Called with every message. The buffer is valid during the call and is not to be released. */
typedef void (*data_cb)(buffer_t buffer);

#ifdef __cplusplus
}
#endif

struct insane_stream {
    takt_stream *stream;
    unsigned depth;
    int no_local;
};

/* A source with the id of its latest message: ids are ints, tokens are not. */
struct insane_source {
    takt_source *source;
    int64_t latest;
};

struct insane_sink {
    takt_sink *sink;
    data_cb cb;
};

__attribute__((weak)) takt_session *insane_session = NULL;

static inline int init_session(void) {
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    if (insane_session != NULL) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    options.allow_embedded = 1;
    return takt_session_open(&options, &insane_session);
}

static inline int close_session(void) {
    int code;
    if (insane_session == NULL) {
        return TAKT_E_CLOSED;
    }
    code = takt_session_end(insane_session);
    takt_session_close(insane_session);
    insane_session = NULL;
    return code;
}

static inline stream_t create_stream(options_t opts) {
    takt_qos qos = TAKT_QOS_INIT;
    stream_t stream = (stream_t)calloc(1, sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    qos.acceleration = opts.acceleration;
    qos.resource_use = opts.resource_use;
    qos.time_sensitivity = opts.time_sensitivity;
    qos.traffic_class = opts.traffic_class;
    qos.reliability = opts.reliable ? TAKT_RELIABLE : TAKT_SENT_ONCE;
    stream->depth = opts.depth;
    stream->no_local = opts.no_local;
    if (takt_stream_open(insane_session, &qos, &stream->stream) < 0) {
        free(stream);
        return NULL;
    }
    return stream;
}

static inline void close_stream(stream_t stream) {
    if (stream != NULL) {
        takt_stream_close(stream->stream);
        free(stream);
    }
}

static inline source_t create_source(stream_t stream, int channel) {
    source_t source = (source_t)calloc(1, sizeof *source);
    if (source == NULL) {
        return NULL;
    }
    if (takt_source_open(stream != NULL ? stream->stream : NULL, (uint64_t)(uint32_t)channel,
                         stream != NULL ? stream->depth : 0, &source->source) < 0) {
        free(source);
        return NULL;
    }
    return source;
}

static inline void close_source(source_t source) {
    if (source != NULL) {
        takt_source_close(source->source);
        free(source);
    }
}

static inline buffer_t insane_buffer(takt_buffer lent, sink_t sink) {
    buffer_t buffer;
    buffer.data = lent.data;
    buffer.length = lent.length;
    buffer.lent = lent;
    buffer.sink = sink;
    return buffer;
}

static inline int64_t insane_timeout(int flags) {
    return flags & INSANE_BLOCKING ? TAKT_FOREVER : TAKT_NOWAIT;
}

static inline buffer_t get_buffer(source_t src, size_t size, int flags) {
    takt_buffer lent = {NULL, 0, {0, 0}};
    takt_buffer_get(src != NULL ? src->source : NULL, size, insane_timeout(flags), &lent);
    return insane_buffer(lent, NULL);
}

static inline void release_buffer(sink_t sink, buffer_t buffer) {
    takt_release(sink != NULL ? sink->sink : NULL, &buffer.lent);
}

static inline int emit_data(source_t src, buffer_t buffer) {
    takt_source *source = src != NULL ? src->source : NULL;
    int64_t token = 0;
    int code;
    if (buffer.data == NULL) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    buffer.lent.length = buffer.length;
    if (buffer.lent.data == NULL) {
        /* In a callback. */
        code = takt_emit_copy(source, buffer.data, buffer.length, TAKT_FOREVER, &token);
    } else if (buffer.sink != NULL) {
        code = takt_forward(source, buffer.sink->sink, &buffer.lent, TAKT_FOREVER, &token);
    } else {
        code = takt_emit(source, &buffer.lent, &token);
    }
    if (code < 0) {
        return code;
    }
    src->latest = token;
    return (int)(token & 0x7fffffff);
}

static inline int check_emit_outcome(source_t source, int id) {
    if (source == NULL || id < 0) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    /* The latest token that has this id. */
    return takt_emit_outcome(source->source,
                             source->latest - ((source->latest - id) & 0x7fffffff));
}

static inline void insane_call(void *user, const takt_buffer *message, const takt_message_info *info) {
    takt_buffer none = {NULL, 0, {0, 0}};
    buffer_t buffer = insane_buffer(none, NULL);
    (void)info;
    buffer.data = message->data;
    buffer.length = message->length;
    ((sink_t)user)->cb(buffer);
}

/* cb == NULL: the application calls consume_data(). */
static inline sink_t create_sink(stream_t stream, int channel, data_cb cb) {
    takt_sink_options options = TAKT_SINK_OPTIONS_INIT;
    sink_t sink = (sink_t)calloc(1, sizeof *sink);
    if (sink == NULL) {
        return NULL;
    }
    sink->cb = cb;
    options.callback = cb != NULL ? insane_call : NULL;
    options.user = sink;
    options.depth = stream != NULL ? stream->depth : 0;
    options.no_local = stream != NULL && stream->no_local;
    if (takt_sink_open_with(stream != NULL ? stream->stream : NULL, (uint64_t)(uint32_t)channel,
                            &options, &sink->sink) < 0) {
        free(sink);
        return NULL;
    }
    return sink;
}

static inline void close_sink(sink_t sink) {
    if (sink != NULL) {
        takt_sink_close(sink->sink);
        free(sink);
    }
}

static inline int data_available(sink_t sink, int flags) {
    takt_sink *of = sink != NULL ? sink->sink : NULL;
    return flags & INSANE_BLOCKING ? takt_sink_wait(of, TAKT_FOREVER) : takt_data_available(of);
}

static inline buffer_t consume_data(sink_t sink, int flags) {
    takt_buffer lent = {NULL, 0, {0, 0}};
    takt_consume(sink != NULL ? sink->sink : NULL, insane_timeout(flags), &lent);
    return insane_buffer(lent, lent.data != NULL ? sink : NULL);
}

#ifdef INSANE_COMPAT
#include "insane_compat.h"
#endif

#endif /* INSANE_H */
