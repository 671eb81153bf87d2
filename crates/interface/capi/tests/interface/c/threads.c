/* Each thread its own source and sink, all of one stream. */

#include <pthread.h>

#include "check.h"

#define THREADS 4
#define MESSAGES 2000

static takt_stream *stream;

static void *work(void *number) {
    uint64_t channel = (uint64_t)(uintptr_t)number;
    takt_source *source;
    takt_sink *sink;
    takt_buffer buffer;
    CHECK(takt_source_open(stream, channel, 64, &source) == 0);
    CHECK(takt_sink_open(stream, channel, NULL, NULL, &sink) == 0);
    for (int i = 0; i < MESSAGES; i++) {
        int text[2] = {(int)channel, i};
        CHECK(takt_buffer_get(source, sizeof text, LONG_TIME, &buffer) == 0);
        memcpy(buffer.data, text, sizeof text);
        CHECK(takt_emit(source, &buffer, NULL) == 0);
        CHECK(takt_consume(sink, LONG_TIME, &buffer) == 0);
        CHECK(buffer.length == sizeof text && memcmp(buffer.data, text, sizeof text) == 0);
        CHECK(takt_release(sink, &buffer) == 0);
    }
    /* The last error is this thread's own. */
    CHECK(strcmp(takt_last_error(), "") == 0);
    CHECK(takt_consume(sink, TAKT_NOWAIT, &buffer) == TAKT_E_WOULD_BLOCK);
    CHECK(strcmp(takt_last_error(), "") != 0);
    takt_sink_close(sink);
    takt_source_close(source);
    return NULL;
}

int main(void) {
    takt_session *session;
    pthread_t threads[THREADS];
    CHECK(takt_session_open(NULL, &session) == 0);
    CHECK(takt_stream_open(session, NULL, &stream) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
        CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    takt_stream_close(stream);
    takt_session_close(session);
    return 0;
}
