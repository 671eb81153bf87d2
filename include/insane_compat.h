/*
 * insane_compat.h: the names of the public INSANE programs, over insane.h. Included by it when INSANE_COMPAT is defined:
 *
 *     #define INSANE_COMPAT 0     v0.1: streams by address, get and emit with a source, flag 0 waits
 *     #define INSANE_COMPAT 1     v1: streams by value, buffers by value, get without a source
 *     #define INSANE_COMPAT 2     v1 with buffers by address
 *
 * Differences that stay are the table in docs/reference/insane.md. Sinks do not hear the sources of their own process, a size of 0
 * asks for INSANE_SLOT bytes. A buffer's `len` of 0 says that there is none.
 */
#ifndef INSANE_COMPAT_H
#define INSANE_COMPAT_H

#include <stdbool.h>
#include <stdio.h>

/* Bytes of a buffer of size 0: what a slot of INSANE carries. */
#ifndef INSANE_SLOT
#define INSANE_SLOT 1472
#endif
/* Most messages under way at a source, waiting or held at a sink. */
#ifndef INSANE_DEPTH
#define INSANE_DEPTH 1024
#endif

typedef enum { datapath_slow = INSANE_SLOW, datapath_fast = INSANE_FAST } datapath_qos_t;
typedef enum { consumption_low = INSANE_FRUGAL, consumption_high = INSANE_UNLIMITED } consumption_qos_t;
typedef enum { determinism_no = INSANE_BEST_EFFORT, determinism_yes = INSANE_TIME_SENSITIVE } determinism_qos_t;

#define NSN_QOS_DATAPATH_DEFAULT INSANE_SLOW
#define NSN_QOS_DATAPATH_FAST INSANE_FAST
#define NSN_QOS_CONSUMPTION_LOW INSANE_FRUGAL
#define NSN_QOS_CONSUMPTION_POLL INSANE_UNLIMITED
#define NSN_QOS_DETERMINISM_DEFAULT INSANE_BEST_EFFORT
#define NSN_QOS_DETERMINISM_TIMESENSITIVE INSANE_TIME_SENSITIVE
#define NSN_QOS_RELIABILITY_UNRELIABLE 0
#define NSN_QOS_RELIABILITY_RELIABLE 1

typedef struct nsn_options_t {
    int datapath;
    int consumption;
    int determinism;
    int reliability;
} nsn_options_t;

/* Sources and sinks are of one type: the public programs mix them up. */
typedef struct nsn_endpoint {
    source_t source;
    sink_t sink;
} *nsn_source_t, *nsn_sink_t;
typedef stream_t nsn_stream_t;

typedef struct nsn_buffer_t {
    size_t index; /* unused */
    uint8_t *data;
    size_t len;
    buffer_t buffer; /* insane.h's */
    nsn_source_t source;
} nsn_buffer_t;

#define NSN_INVALID_STREAM_HANDLE NULL
#define NSN_INVALID_SRC NULL
#define NSN_INVALID_SNK NULL

#if INSANE_COMPAT == 0
#define NSN_BLOCKING 0
#define NSN_NONBLOCKING 1
#else
#define NSN_BLOCKING INSANE_BLOCKING
#define NSN_NONBLOCKING INSANE_NONBLOCKING
#endif

/* v1 gets buffers without a source: from the one that was opened last. */
__attribute__((weak)) nsn_source_t insane_latest_source = NULL;

static inline int insane_flags(int flags) {
    return flags == NSN_BLOCKING ? INSANE_BLOCKING : INSANE_NONBLOCKING;
}

static inline int nsn_init(void) {
    return init_session();
}

static inline int nsn_close(void) {
    insane_latest_source = NULL;
    return close_session();
}

static inline nsn_stream_t insane_open_stream(nsn_options_t from) {
    options_t options;
    memset(&options, 0, sizeof options);
    if (from.reliability != NSN_QOS_RELIABILITY_UNRELIABLE && from.reliability != NSN_QOS_RELIABILITY_RELIABLE) {
        fprintf(stderr,
                "insane_compat.h: reliability is %d: write NSN_QOS_RELIABILITY_UNRELIABLE or "
                "NSN_QOS_RELIABILITY_RELIABLE\n",
                from.reliability);
        return NULL;
    }
    options.acceleration = from.datapath;
    options.resource_use = from.consumption;
    options.time_sensitivity = from.determinism;
    options.depth = INSANE_DEPTH;
    options.no_local = 1;
    options.reliable = from.reliability;
    return create_stream(options);
}

static inline nsn_source_t insane_open_source(nsn_stream_t stream, uint32_t id) {
    nsn_source_t endpoint = (nsn_source_t)calloc(1, sizeof *endpoint);
    if (endpoint != NULL && (endpoint->source = create_source(stream, (int)id)) == NULL) {
        free(endpoint);
        endpoint = NULL;
    }
    if (endpoint != NULL) {
        insane_latest_source = endpoint;
    }
    return endpoint;
}

static inline nsn_sink_t insane_open_sink(nsn_stream_t stream, uint32_t id, data_cb cb) {
    nsn_sink_t endpoint = (nsn_sink_t)calloc(1, sizeof *endpoint);
    if (endpoint != NULL && (endpoint->sink = create_sink(stream, (int)id, cb)) == NULL) {
        free(endpoint);
        endpoint = NULL;
    }
    return endpoint;
}

static inline int nsn_destroy_source(nsn_source_t source) {
    if (source == insane_latest_source) {
        insane_latest_source = NULL;
    }
    if (source != NULL) {
        close_source(source->source);
        free(source);
    }
    return 0;
}

static inline int nsn_destroy_sink(nsn_sink_t sink) {
    if (sink != NULL) {
        close_sink(sink->sink);
        free(sink);
    }
    return 0;
}

static inline nsn_buffer_t insane_wrap(buffer_t buffer, nsn_source_t source) {
    nsn_buffer_t wrapped;
    wrapped.index = 0;
    wrapped.data = (uint8_t *)buffer.data;
    wrapped.len = buffer.data != NULL ? buffer.length : 0;
    wrapped.buffer = buffer;
    wrapped.source = source;
    return wrapped;
}

static inline nsn_buffer_t insane_get(nsn_source_t source, size_t size, int flags) {
    source_t from = source != NULL ? source->source : NULL;
    return insane_wrap(get_buffer(from, size != 0 ? size : INSANE_SLOT, insane_flags(flags)), source);
}

static inline int insane_emit(nsn_source_t source, nsn_buffer_t *buffer) {
    buffer_t data = buffer->buffer;
    source_t to = source != NULL ? source->source : NULL;
    int id;
    data.length = buffer->len;
    if (data.data != NULL && data.sink == NULL && buffer->source != source && buffer->source != NULL) {
        /* Of another source: its bytes go, and the buffer back. */
        buffer_t foreign = data;
        memset(&foreign.lent, 0, sizeof foreign.lent);
        id = emit_data(to, foreign);
        takt_buffer_abandon(buffer->source->source->source, &data.lent);
    } else {
        id = emit_data(to, data);
    }
    memset(buffer, 0, sizeof *buffer);
    return id;
}

static inline nsn_buffer_t insane_consume(nsn_sink_t sink, int flags) {
    return insane_wrap(consume_data(sink != NULL ? sink->sink : NULL, insane_flags(flags)), NULL);
}

static inline int insane_release(nsn_buffer_t *buffer) {
    if (buffer->buffer.sink == NULL) {
        return 0;
    }
    release_buffer(buffer->buffer.sink, buffer->buffer);
    memset(buffer, 0, sizeof *buffer);
    return 1;
}

static inline bool nsn_buffer_is_valid(const nsn_buffer_t *buffer) {
    return buffer != NULL && buffer->data != NULL;
}

static inline int nsn_check_emit_outcome(nsn_source_t source, int id) {
    return check_emit_outcome(source != NULL ? source->source : NULL, id);
}

static inline int nsn_data_available(nsn_sink_t sink, int flags) {
    return data_available(sink != NULL ? sink->sink : NULL, insane_flags(flags));
}

#if INSANE_COMPAT == 0

static inline nsn_stream_t nsn_create_stream(nsn_options_t *options) {
    return insane_open_stream(*options);
}

static inline int nsn_destroy_stream(nsn_stream_t *stream) {
    close_stream(*stream);
    return 0;
}

static inline nsn_source_t nsn_create_source(nsn_stream_t *stream, uint32_t id) {
    return insane_open_source(*stream, id);
}

static inline nsn_sink_t nsn_create_sink(nsn_stream_t *stream, uint32_t id, data_cb cb) {
    return insane_open_sink(*stream, id, cb);
}

static inline nsn_buffer_t nsn_get_buffer(nsn_source_t source, size_t size, int flags) {
    return insane_get(source, size, flags);
}

static inline int nsn_emit_data(nsn_source_t source, nsn_buffer_t *buffer) {
    return insane_emit(source, buffer);
}

static inline nsn_buffer_t nsn_consume_data(nsn_sink_t sink, int flags) {
    return insane_consume(sink, flags);
}

static inline void nsn_release_data(nsn_sink_t sink, nsn_buffer_t *buffer) {
    (void)sink;
    insane_release(buffer);
}

#else

static inline nsn_stream_t nsn_create_stream(nsn_options_t options) {
    return insane_open_stream(options);
}

static inline int nsn_destroy_stream(nsn_stream_t stream) {
    close_stream(stream);
    return 0;
}

static inline nsn_source_t nsn_create_source(nsn_stream_t stream, uint32_t id) {
    return insane_open_source(stream, id);
}

static inline nsn_sink_t nsn_create_sink(nsn_stream_t stream, uint32_t id, data_cb cb) {
    return insane_open_sink(stream, id, cb);
}

#if INSANE_COMPAT == 1

static inline nsn_buffer_t nsn_get_buffer(size_t size, int flags) {
    return insane_get(insane_latest_source, size, flags);
}

static inline int nsn_emit_data(nsn_source_t source, nsn_buffer_t buffer) {
    return insane_emit(source, &buffer);
}

static inline nsn_buffer_t nsn_consume_data(nsn_sink_t sink, int flags) {
    return insane_consume(sink, flags);
}

static inline int nsn_release_data(nsn_buffer_t buffer) {
    return insane_release(&buffer);
}

#else

/* A buffer on the heap until it is emitted or released; one with len 0 if there is none, as the programs expect. */
static inline nsn_buffer_t *insane_keep(nsn_buffer_t buffer) {
    static nsn_buffer_t none;
    nsn_buffer_t *kept = buffer.data != NULL ? (nsn_buffer_t *)malloc(sizeof *kept) : NULL;
    if (kept == NULL) {
        return &none;
    }
    *kept = buffer;
    return kept;
}

static inline nsn_buffer_t *nsn_get_buffer(size_t size, int flags) {
    return insane_keep(insane_get(insane_latest_source, size, flags));
}

static inline int nsn_emit_data(nsn_source_t source, nsn_buffer_t *buffer) {
    bool kept = nsn_buffer_is_valid(buffer);
    int id = insane_emit(source, buffer);
    if (kept) {
        free(buffer);
    }
    return id;
}

static inline nsn_buffer_t *nsn_consume_data(nsn_sink_t sink, int flags) {
    return insane_keep(insane_consume(sink, flags));
}

static inline int nsn_release_data(nsn_buffer_t *buffer) {
    bool kept = nsn_buffer_is_valid(buffer);
    int released = insane_release(buffer);
    if (kept) {
        free(buffer);
    }
    return released;
}

#endif
#endif

#endif /* INSANE_COMPAT_H */
