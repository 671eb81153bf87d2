/* Waits that end early, readers that are waited for, and what a session does not tell itself. */

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

#include "check.h"

#define CHANNEL 5

static volatile sig_atomic_t ticks;

static void tick(int signal) {
    (void)signal;
    ticks++;
}

static void *wake(void *sink) {
    CHECK(takt_wake((takt_sink *)sink) == 0);
    return NULL;
}

static void *wake_source(void *source) {
    CHECK(takt_wake_source((takt_source *)source) == 0);
    return NULL;
}

/* A timer whose handler glibc installs with SA_RESTART. */
static void signals(takt_sink *sink, takt_source *source) {
    struct itimerval every = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    takt_buffer buffer;
    signal(SIGALRM, tick);
    CHECK(setitimer(ITIMER_REAL, &every, NULL) == 0);
    CHECK(takt_consume(sink, TAKT_FOREVER, &buffer) == TAKT_E_INTERRUPTED);
    CHECK(takt_sink_wait(sink, LONG_TIME) == TAKT_E_INTERRUPTED);
    CHECK(takt_source_wait_reader(source, TAKT_FOREVER) == TAKT_E_INTERRUPTED);
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
    CHECK(ticks > 0);
}

static void next(takt_sink *sink, takt_buffer *buffer, const char *text) {
    CHECK(takt_consume(sink, LONG_TIME, buffer) == 0);
    CHECK(buffer->length <= strlen(text) && memcmp(buffer->data, text, buffer->length) == 0);
}

/* Received messages go on: without a copy, with one where source and sink are not of one session, and not twice. */
static void forwards(takt_stream *stream) {
    takt_source *source, *onward;
    takt_sink *sink, *back, *own;
    takt_session *other;
    takt_stream *others;
    takt_buffer buffer, stale, held[4];
    int64_t token;
    int i;
    CHECK(takt_session_open(NULL, &other) == 0);
    CHECK(takt_stream_open(other, NULL, &others) == 0);
    CHECK(takt_source_open(others, CHANNEL + 2, 0, &source) == 0);
    CHECK(takt_sink_open(others, CHANNEL + 3, NULL, NULL, &back) == 0);
    CHECK(takt_sink_open(stream, CHANNEL + 2, NULL, NULL, &sink) == 0);
    CHECK(takt_sink_open(stream, CHANNEL + 3, NULL, NULL, &own) == 0);
    CHECK(takt_source_open(stream, CHANNEL + 3, 4, &onward) == 0);
    for (i = 0; i < 300; i++) {
        CHECK(takt_emit_copy(source, "message", 7, LONG_TIME, NULL) == 0);
        next(sink, &buffer, "message");
        stale = buffer;
        buffer.length = 8;
        CHECK(takt_forward(onward, sink, &buffer, LONG_TIME, &token) == TAKT_E_TOO_LARGE);
        buffer.length = i % 8;
        CHECK(takt_forward(onward, sink, &buffer, LONG_TIME, &token) == 0);
        CHECK(buffer.data == NULL && token == i);
        CHECK(takt_forward(onward, sink, &stale, LONG_TIME, &token) == TAKT_E_INVALID_ARGUMENT);
        CHECK(takt_release(sink, &stale) == TAKT_E_INVALID_ARGUMENT);
        next(back, &buffer, "message");
        CHECK(buffer.length == (size_t)(i % 8));
        CHECK(takt_release(back, &buffer) == 0);
        CHECK(takt_consume(own, LONG_TIME, &buffer) == 0 && buffer.length == (size_t)(i % 8));
        CHECK(takt_release(own, &buffer) == 0);
        while (takt_emit_outcome(onward, token) == TAKT_PENDING) {
        }
        CHECK(takt_emit_outcome(onward, token) == TAKT_SENT);
    }
    /* No room: it is held as before. */
    for (i = 0; i < 4; i++) {
        CHECK(takt_buffer_get(onward, 1, LONG_TIME, &held[i]) == 0);
    }
    CHECK(takt_emit_copy(source, "kept", 4, LONG_TIME, NULL) == 0);
    next(sink, &buffer, "kept");
    stale = buffer;
    CHECK(takt_forward(onward, sink, &buffer, TAKT_NOWAIT, &token) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_forward(onward, sink, &buffer, 1000000, &token) == TAKT_E_TIMED_OUT);
    CHECK(takt_buffer_abandon(onward, &held[0]) == 0);
    CHECK(takt_forward(onward, sink, &stale, LONG_TIME, NULL) == 0);
    next(back, &buffer, "kept");
    for (i = 1; i < 4; i++) {
        CHECK(takt_buffer_abandon(onward, &held[i]) == 0);
    }
    /* Of another session, and what this session had emitted itself. */
    CHECK(takt_forward(onward, back, &buffer, LONG_TIME, NULL) == 0);
    next(back, &buffer, "kept");
    CHECK(takt_release(back, &buffer) == 0);
    next(own, &buffer, "kept");
    CHECK(takt_release(own, &buffer) == 0);
    CHECK(takt_emit_copy(onward, "mine", 4, LONG_TIME, NULL) == 0);
    next(own, &buffer, "kept");
    CHECK(takt_release(own, &buffer) == 0);
    next(own, &buffer, "mine");
    CHECK(takt_forward(onward, own, &buffer, LONG_TIME, NULL) == 0);
    next(back, &buffer, "mine");
    CHECK(takt_release(back, &buffer) == 0);
    next(back, &buffer, "mine");
    CHECK(takt_forward(NULL, back, &buffer, 0, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_forward(onward, NULL, &buffer, 0, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_forward(onward, back, NULL, 0, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_forward(onward, back, &buffer, -7, NULL) == TAKT_E_INVALID_ARGUMENT);
    /* Its sink and the session of its sink end while it is under way. */
    CHECK(takt_emit_copy(source, "last", 4, LONG_TIME, NULL) == 0);
    next(sink, &stale, "last");
    CHECK(takt_forward(onward, sink, &stale, LONG_TIME, NULL) == 0);
    takt_sink_close(sink);
    next(back, &stale, "last");
    takt_sink_close(own);
    takt_source_close(onward);
    takt_sink_close(back);
    takt_source_close(source);
    takt_stream_close(others);
    takt_session_close(other);
}

static void readers(takt_session *session, takt_stream *stream) {
    takt_source *source;
    takt_sink *sink, *own;
    takt_sink_options options = TAKT_SINK_OPTIONS_INIT;
    takt_session *other;
    takt_stream *others;
    takt_buffer buffer;
    int64_t token;
    char text[256];
    CHECK(takt_source_open(stream, CHANNEL + 1, 0, &source) == 0);
    CHECK(takt_source_wait_reader(source, TAKT_NOWAIT) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_source_wait_reader(source, 1000000) == TAKT_E_TIMED_OUT);
    options.no_local = 1;
    CHECK(takt_sink_open_with(stream, CHANNEL + 1, &options, &own) == 0);
    CHECK(takt_source_wait_reader(source, TAKT_NOWAIT) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_emit_copy(source, "nobody", 6, LONG_TIME, &token) == 0);
    while (takt_emit_outcome(source, token) == TAKT_PENDING) {
    }
    CHECK(takt_emit_outcome(source, token) == TAKT_NO_SINK);
    CHECK(takt_session_open(NULL, &other) == 0);
    CHECK(takt_stream_open(other, NULL, &others) == 0);
    CHECK(takt_sink_open(others, CHANNEL + 1, NULL, NULL, &sink) == 0);
    CHECK(takt_source_wait_reader(source, LONG_TIME) == 1);
    CHECK(takt_emit_copy(source, "one", 3, LONG_TIME, NULL) == 0);
    CHECK(takt_sink_wait(sink, LONG_TIME) == 1);
    CHECK(takt_consume(sink, TAKT_NOWAIT, &buffer) == 0);
    CHECK(buffer.length == 3 && memcmp(buffer.data, "one", 3) == 0);
    /* A received message goes on by a copy. */
    CHECK(takt_emit_copy(source, buffer.data, buffer.length, LONG_TIME, NULL) == 0);
    CHECK(takt_release(sink, &buffer) == 0);
    CHECK(takt_consume(sink, LONG_TIME, &buffer) == 0);
    CHECK(buffer.length == 3 && memcmp(buffer.data, "one", 3) == 0);
    CHECK(takt_emit_copy(source, NULL, 0, LONG_TIME, NULL) == 0);
    CHECK(takt_emit_copy(source, NULL, 1, LONG_TIME, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_emit_copy(source, "x", SIZE_MAX, LONG_TIME, NULL) == TAKT_E_TOO_LARGE);
    CHECK(takt_data_available(own) == 0);
    CHECK(takt_sink_warning(sink, text, sizeof text) == 0 && text[0] == 0);
    takt_sink_close(sink);
    takt_stream_close(others);
    takt_session_close(other);
    takt_sink_close(own);
    takt_source_close(source);
    (void)session;
}

/* A region that holds one long message is told of. */
static void warning(void) {
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    takt_session *session;
    takt_stream *stream;
    takt_sink *sink;
    char text[256];
    options.rx_bytes = 16 << 20;
    CHECK(takt_session_open(&options, &session) == 0);
    CHECK(takt_stream_open(session, NULL, &stream) == 0);
    CHECK(takt_sink_open(stream, CHANNEL, NULL, NULL, &sink) == 0);
    CHECK(takt_sink_warning(sink, text, sizeof text) > 0);
    CHECK(strstr(text, "16384 KiB") != NULL && strstr(text, "rx_bytes") != NULL);
    takt_sink_close(sink);
    takt_stream_close(stream);
    takt_session_close(session);
}

int main(void) {
    takt_qos qos = TAKT_QOS_INIT;
    takt_session *session;
    CHECK(takt_session_open(NULL, &session) == 0);
    for (qos.resource_use = TAKT_FRUGAL; qos.resource_use <= TAKT_UNLIMITED; qos.resource_use++) {
        takt_stream *stream;
        takt_source *source;
        takt_sink *sink;
        takt_buffer buffer;
        pthread_t thread;
        CHECK(takt_stream_open(session, &qos, &stream) == 0);
        CHECK(takt_source_open(stream, CHANNEL + 7, 0, &source) == 0);
        CHECK(takt_sink_open(stream, CHANNEL, NULL, NULL, &sink) == 0);
        for (int i = 0; i < 20; i++) {
            CHECK(pthread_create(&thread, NULL, wake, sink) == 0);
            CHECK(takt_consume(sink, TAKT_FOREVER, &buffer) == TAKT_E_INTERRUPTED);
            CHECK(pthread_join(thread, NULL) == 0);
            CHECK(pthread_create(&thread, NULL, wake_source, source) == 0);
            CHECK(takt_source_wait_reader(source, TAKT_FOREVER) == TAKT_E_INTERRUPTED);
            CHECK(pthread_join(thread, NULL) == 0);
        }
        signals(sink, source);
        takt_sink_close(sink);
        takt_source_close(source);
        readers(session, stream);
        forwards(stream);
        takt_stream_close(stream);
    }
    warning();
    {
        takt_stream *stream;
        takt_source *source;
        takt_sink *sink;
        takt_buffer message, other, buffer;
        CHECK(takt_stream_open(session, NULL, &stream) == 0);
        CHECK(takt_source_open(stream, CHANNEL, 0, &source) == 0);
        CHECK(takt_sink_open(stream, CHANNEL, NULL, NULL, &sink) == 0);
        CHECK(takt_emit_copy(source, "held", 4, LONG_TIME, NULL) == 0);
        CHECK(takt_consume(sink, LONG_TIME, &message) == 0);
        CHECK(takt_buffer_get(source, 4, LONG_TIME, &buffer) == 0);
        CHECK(takt_session_end(session) == 0);
        CHECK(memcmp(message.data, "held", 4) == 0);
        CHECK(takt_emit(source, &buffer, NULL) == TAKT_E_CLOSED);
        CHECK(takt_buffer_get(source, 4, LONG_TIME, &buffer) == TAKT_E_CLOSED);
        CHECK(takt_consume(sink, TAKT_FOREVER, &other) == TAKT_E_CLOSED);
        CHECK(takt_session_end(session) == 0);
        CHECK(memcmp(message.data, "held", 4) == 0);
        CHECK(takt_release(sink, &message) == 0);
        takt_sink_close(sink);
        takt_source_close(source);
        takt_stream_close(stream);
    }
    takt_session_close(session);
    return 0;
}
