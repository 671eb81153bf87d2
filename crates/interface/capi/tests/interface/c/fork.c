/* fork: the child may not use its parent's session, may close it, and may open its own. */

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void round_trip(takt_source *source, takt_sink *sink) {
    takt_buffer buffer;
    CHECK(takt_buffer_get(source, 4, LONG_TIME, &buffer) == 0);
    memcpy(buffer.data, "trip", 4);
    CHECK(takt_emit(source, &buffer, NULL) == 0);
    CHECK(takt_consume(sink, LONG_TIME, &buffer) == 0);
    CHECK(buffer.length == 4 && memcmp(buffer.data, "trip", 4) == 0);
    CHECK(takt_release(sink, &buffer) == 0);
}

static void open_all(uint64_t channel, takt_session **session, takt_stream **stream,
                     takt_source **source, takt_sink **sink) {
    CHECK(takt_session_open(NULL, session) == 0);
    CHECK(takt_stream_open(*session, NULL, stream) == 0);
    CHECK(takt_source_open(*stream, channel, 0, source) == 0);
    CHECK(takt_sink_open(*stream, channel, NULL, NULL, sink) == 0);
}

/* Those that do not send or receive: in a child they fail as well. */
static void others_fail(takt_session *session, takt_stream *stream, takt_source *source, takt_sink *sink,
                        takt_buffer *held) {
    takt_sink_counters counters = TAKT_SINK_COUNTERS_INIT;
    takt_message_info info = TAKT_MESSAGE_INFO_INIT;
    takt_source *none;
    takt_sink *nobody;
    uint64_t lost;
    CHECK(takt_session_end(session) == TAKT_E_FORKED);
    CHECK(takt_stream_datapath(stream, NULL, 0) == TAKT_E_FORKED);
    CHECK(takt_stream_warning(stream, NULL, 0) == TAKT_E_FORKED);
    CHECK(takt_source_open(stream, 1, 0, &none) == TAKT_E_FORKED);
    CHECK(takt_sink_open(stream, 1, NULL, NULL, &nobody) == TAKT_E_FORKED);
    CHECK(takt_source_max_message(source) == TAKT_E_FORKED);
    CHECK(takt_source_lost(source, &lost) == TAKT_E_FORKED);
    CHECK(takt_source_at_once_here(source, 1) == TAKT_E_FORKED);
    CHECK(takt_source_wait_reader(source, TAKT_FOREVER) == TAKT_E_FORKED);
    CHECK(takt_emit_copy(source, "copy", 4, TAKT_FOREVER, NULL) == TAKT_E_FORKED);
    CHECK(takt_emit_outcome(source, 0) == TAKT_E_FORKED);
    CHECK(takt_flush(source) == TAKT_E_FORKED);
    CHECK(takt_wake_source(source) == TAKT_E_FORKED);
    CHECK(takt_source_fd(source) == TAKT_E_FORKED);
    CHECK(takt_source_arm(source, 1) == TAKT_E_FORKED);
    CHECK(takt_buffer_abandon(source, held) == TAKT_E_FORKED);
    CHECK(takt_forward(source, sink, held, TAKT_FOREVER, NULL) == TAKT_E_FORKED);
    CHECK(takt_data_available(sink) == TAKT_E_FORKED);
    CHECK(takt_sink_wait(sink, TAKT_FOREVER) == TAKT_E_FORKED);
    CHECK(takt_sink_warning(sink, NULL, 0) == TAKT_E_FORKED);
    CHECK(takt_sink_read_counters(sink, &counters) == TAKT_E_FORKED);
    CHECK(takt_message_information(sink, held, &info) == TAKT_E_FORKED);
    CHECK(takt_release(sink, held) == TAKT_E_FORKED);
    CHECK(takt_sink_fd(sink) == TAKT_E_FORKED);
    CHECK(takt_sink_arm(sink) == TAKT_E_FORKED);
    CHECK(takt_sink_failure(sink) == TAKT_E_FORKED);
    CHECK(takt_wake(sink) == TAKT_E_FORKED);
    CHECK(strstr(takt_last_error(), "after fork") != NULL);
}

int main(void) {
    takt_session *session;
    takt_stream *stream;
    takt_source *source;
    takt_sink *sink;
    open_all(1, &session, &stream, &source, &sink);
    round_trip(source, sink);
    takt_buffer held;
    CHECK(takt_buffer_get(source, 4, LONG_TIME, &held) == 0);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            takt_buffer buffer;
            takt_stream *none;
            CHECK(takt_session_attached(session) == 0);
            CHECK(takt_stream_open(session, NULL, &none) == TAKT_E_FORKED);
            CHECK(takt_buffer_get(source, 4, TAKT_FOREVER, &buffer) == TAKT_E_FORKED);
            CHECK(takt_emit(source, &held, NULL) == TAKT_E_FORKED);
            CHECK(takt_consume(sink, TAKT_FOREVER, &buffer) == TAKT_E_FORKED);
            others_fail(session, stream, source, sink, &held);
            if (round == 1) {
                takt_sink_close(sink);
                takt_source_close(source);
                takt_stream_close(stream);
                takt_session_close(session);
            }
            if (round == 2) {
                open_all(2, &session, &stream, &source, &sink);
                round_trip(source, sink);
            }
            exit(0); /* with all exit handlers */
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        round_trip(source, sink);
    }
    memcpy(held.data, "held", 4);
    CHECK(takt_emit(source, &held, NULL) == 0);
    CHECK(takt_consume(sink, LONG_TIME, &held) == 0);
    CHECK(memcmp(held.data, "held", 4) == 0);
    takt_sink_close(sink);
    takt_source_close(source);
    takt_stream_close(stream);
    takt_session_close(session);
    return 0;
}
