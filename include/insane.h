/*
 * insane.h: the interface of INSANE under its own names (naaas-thesis-2024, figure 6.7), over takt.h.
 *
 * For programs that were written from the figure. New programs use takt.h, which tells more: why
 * something failed, how long to wait, which datapath was chosen.
 *
 * The figure gives the signatures; what it leaves open is settled here:
 * - One session per process: init_session() opens it, close_session() gives it up. Both return 0, or
 *   a negative TAKT_E_ code.
 * - stream_t, source_t and sink_t are pointers, NULL on failure; then takt_last_error() says why.
 * - A buffer_t whose data is NULL is no buffer: get_buffer() and consume_data() failed, or had none.
 * - emit_data() returns the id of the message, 0 or more, or a negative code. check_emit_outcome()
 *   returns an enum takt_outcome (0 while the message is on its way) or a negative code.
 * - data_available() returns how many messages wait, or a negative code.
 *
 * If no runtime answers on this node, init_session() runs one inside the process (see allow_embedded in
 * takt.h). All files of a program that include this header share the session. For GCC and Clang, C11 or
 * C++; link with -ltakt. Threads and fork: as in takt.h.
 */
#ifndef INSANE_H
#define INSANE_H

#include "takt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Quality options (section 6.3.2). All zero is what costs least. */
typedef takt_qos options_t;

/* options_t.acceleration: datapath acceleration. */
#define INSANE_SLOW TAKT_SLOW
#define INSANE_FAST TAKT_FAST
/* options_t.resource_use: resource consumption. */
#define INSANE_FRUGAL TAKT_FRUGAL
#define INSANE_UNLIMITED TAKT_UNLIMITED
/* options_t.time_sensitivity; with INSANE_TIME_SENSITIVE also options_t.traffic_class, 0 to 7. */
#define INSANE_BEST_EFFORT TAKT_BEST_EFFORT
#define INSANE_TIME_SENSITIVE TAKT_TIME_SENSITIVE

/* flags of get_buffer(), data_available() and consume_data(). */
#define INSANE_NONBLOCKING 0
#define INSANE_BLOCKING 1

typedef takt_stream *stream_t;
typedef struct insane_source *source_t;
typedef takt_sink *sink_t;
typedef takt_buffer buffer_t;

/* Called with every message. The buffer is valid during the call and is not to be released. */
typedef void (*data_cb)(buffer_t buffer);

#ifdef __cplusplus
}
#endif

#include <stdlib.h>
#include <string.h>

/* A source with the id of its latest message: ids are ints, tokens are not. */
struct insane_source {
    takt_source *source;
    int64_t latest;
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
    if (insane_session == NULL) {
        return TAKT_E_CLOSED;
    }
    takt_session_close(insane_session);
    insane_session = NULL;
    return TAKT_OK;
}

static inline stream_t create_stream(options_t opts) {
    takt_stream *stream = NULL;
    return takt_stream_open(insane_session, &opts, &stream) < 0 ? NULL : stream;
}

static inline void close_stream(stream_t stream) {
    takt_stream_close(stream);
}

static inline source_t create_source(stream_t stream, int channel) {
    source_t source = (source_t)calloc(1, sizeof *source);
    if (source == NULL) {
        return NULL;
    }
    if (takt_source_open(stream, (uint64_t)(uint32_t)channel, 0, &source->source) < 0) {
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

static inline buffer_t get_buffer(source_t src, size_t size, int flags) {
    buffer_t buffer = {NULL, 0, {0, 0}};
    int64_t timeout_ns = flags & INSANE_BLOCKING ? TAKT_FOREVER : TAKT_NOWAIT;
    takt_buffer_get(src != NULL ? src->source : NULL, size, timeout_ns, &buffer);
    return buffer;
}

static inline int emit_data(source_t src, buffer_t buffer) {
    int64_t token = 0;
    int code = takt_emit(src != NULL ? src->source : NULL, &buffer, &token);
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
    data_cb cb;
    (void)info;
    memcpy(&cb, &user, sizeof cb);
    cb(*message);
}

/* cb == NULL: the application calls consume_data(). */
static inline sink_t create_sink(stream_t stream, int channel, data_cb cb) {
    takt_sink *sink = NULL;
    takt_callback callback = cb != NULL ? insane_call : NULL;
    void *user;
    /* A function's address in a void *, which POSIX has room for and a cast would be warned of. */
    memcpy(&user, &cb, sizeof user);
    return takt_sink_open(stream, (uint64_t)(uint32_t)channel, callback, user, &sink) < 0 ? NULL : sink;
}

static inline void close_sink(sink_t sink) {
    takt_sink_close(sink);
}

static inline int data_available(sink_t sink, int flags) {
    (void)flags;
    return takt_data_available(sink);
}

static inline buffer_t consume_data(sink_t sink, int flags) {
    buffer_t buffer = {NULL, 0, {0, 0}};
    takt_consume(sink, flags & INSANE_BLOCKING ? TAKT_FOREVER : TAKT_NOWAIT, &buffer);
    return buffer;
}

static inline void release_buffer(sink_t sink, buffer_t buffer) {
    takt_release(sink, &buffer);
}

#endif /* INSANE_H */
