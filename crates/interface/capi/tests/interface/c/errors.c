/* Wrong arguments: an error each, and nothing is disturbed. */

#include "check.h"

#define WRONG(call) CHECK((call) == TAKT_E_INVALID_ARGUMENT)

static void nothing(void *user, const takt_buffer *message, const takt_message_info *info) {
    (void)user;
    (void)message;
    (void)info;
}

int main(void) {
    takt_session *session, *none;
    takt_stream *stream;
    takt_source *source, *other;
    takt_sink *sink, *called;
    takt_buffer buffer, copy;
    takt_message_info info = TAKT_MESSAGE_INFO_INIT;
    takt_sink_counters counters = TAKT_SINK_COUNTERS_INIT;
    uint64_t count;

    CHECK(strcmp(takt_last_error(), "") == 0);
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    options.socket = "/nonexistent/takt.sock";
    CHECK(takt_session_open(&options, &none) == TAKT_E_NO_RUNTIME);
    CHECK(none == NULL);
    CHECK(strstr(takt_last_error(), "/nonexistent/takt.sock") != NULL);
    CHECK(strcmp(takt_last_error(), takt_last_error()) == 0);
    options.size = 0;
    WRONG(takt_session_open(&options, &none));
    options.size = sizeof options;
    options.socket = "\xff";
    WRONG(takt_session_open(&options, &none));
    WRONG(takt_session_open(NULL, NULL));
    CHECK(takt_session_open(NULL, &session) == 0);

    /* NULL wherever something is expected. */
    WRONG(takt_session_attached(NULL));
    WRONG(takt_stream_open(NULL, NULL, &stream));
    WRONG(takt_stream_open(session, NULL, NULL));
    CHECK(takt_stream_open(session, NULL, &stream) == 0);
    WRONG(takt_stream_datapath(NULL, NULL, 0));
    WRONG(takt_stream_datapath(stream, NULL, 5));
    WRONG(takt_stream_warning(NULL, NULL, 0));
    WRONG(takt_source_open(NULL, 1, 0, &source));
    WRONG(takt_source_open(stream, 1, 0, NULL));
    WRONG(takt_source_open(stream, 1, 3, &source));
    CHECK(source == NULL);
    CHECK(strstr(takt_last_error(), "3") != NULL);
    CHECK(takt_source_open(stream, 1, 2, &source) == 0);
    CHECK(takt_source_open(stream, 1, 2, &other) == 0);
    WRONG(takt_source_max_message(NULL));
    WRONG(takt_source_lost(NULL, &count));
    WRONG(takt_source_lost(source, NULL));
    WRONG(takt_buffer_get(NULL, 1, 0, &buffer));
    WRONG(takt_buffer_get(source, 1, 0, NULL));
    WRONG(takt_buffer_get(source, 1, -2, &buffer));
    WRONG(takt_emit(NULL, &buffer, NULL));
    WRONG(takt_emit(source, NULL, NULL));
    WRONG(takt_emit_at(source, NULL, 0, NULL));
    WRONG(takt_emit_more(NULL, NULL, NULL));
    WRONG(takt_flush(NULL));
    WRONG(takt_emit_outcome(NULL, 0));
    WRONG(takt_buffer_abandon(NULL, &buffer));
    WRONG(takt_buffer_abandon(source, NULL));
    WRONG(takt_sink_open(NULL, 1, NULL, NULL, &sink));
    WRONG(takt_sink_open(stream, 1, NULL, NULL, NULL));
    CHECK(takt_sink_open(stream, 1, NULL, NULL, &sink) == 0);
    WRONG(takt_data_available(NULL));
    WRONG(takt_consume(NULL, 0, &buffer));
    WRONG(takt_consume(sink, 0, NULL));
    WRONG(takt_consume(sink, -7, &buffer));
    WRONG(takt_message_information(sink, NULL, &info));
    WRONG(takt_release(sink, NULL));
    WRONG(takt_release(NULL, &buffer));
    WRONG(takt_source_fd(NULL));
    WRONG(takt_source_arm(NULL, 1));
    WRONG(takt_sink_fd(NULL));
    WRONG(takt_sink_arm(NULL));
    WRONG(takt_sink_read_counters(sink, NULL));
    WRONG(takt_sink_failure(NULL));
    takt_session_close(NULL);
    takt_stream_close(NULL);
    takt_source_close(NULL);
    takt_sink_close(NULL);

    /* Values that mean nothing. */
    takt_qos qos = TAKT_QOS_INIT;
    qos.acceleration = 7;
    takt_stream *bad;
    WRONG(takt_stream_open(session, &qos, &bad));
    qos.acceleration = TAKT_FAST;
    qos.resource_use = 9;
    WRONG(takt_stream_open(session, &qos, &bad));
    qos.resource_use = TAKT_FRUGAL;
    qos.time_sensitivity = TAKT_TIME_SENSITIVE;
    qos.traffic_class = 8;
    WRONG(takt_stream_open(session, &qos, &bad));
    CHECK(strstr(takt_last_error(), "traffic_class") != NULL);
    qos.time_sensitivity = TAKT_BEST_EFFORT;
    qos.datapath = "XDP";
    WRONG(takt_stream_open(session, &qos, &bad));
    CHECK(strstr(takt_last_error(), "\"XDP\"") != NULL);
    qos.datapath = "absent";
    CHECK(takt_stream_open(session, &qos, &bad) == TAKT_E_NOT_AVAILABLE);
    CHECK(strstr(takt_last_error(), "absent and no other: this node has udp") != NULL);
    qos.datapath = "";
    CHECK(takt_stream_open(session, &qos, &bad) == 0);
    takt_stream_close(bad);

    /* Buffers of others, and twice. */
    memset(&buffer, 0, sizeof buffer);
    WRONG(takt_emit(source, &buffer, NULL));
    CHECK(takt_buffer_get(source, 10, TAKT_NOWAIT, &buffer) == 0);
    WRONG(takt_emit(other, &buffer, NULL));
    WRONG(takt_release(sink, &buffer));
    buffer.length = 1 << 20;
    CHECK(takt_emit(source, &buffer, NULL) == TAKT_E_TOO_LARGE);
    buffer.length = 10;
    copy = buffer;
    CHECK(takt_emit(source, &buffer, NULL) == 0);
    WRONG(takt_emit(source, &buffer, NULL));
    WRONG(takt_emit(source, &copy, NULL));
    WRONG(takt_buffer_abandon(source, &copy));
    CHECK(takt_consume(sink, LONG_TIME, &buffer) == 0);
    copy = buffer;
    WRONG(takt_emit(source, &buffer, NULL));
    CHECK(takt_release(sink, &buffer) == 0);
    WRONG(takt_release(sink, &copy));
    WRONG(takt_message_information(sink, &copy, &info));

    /* All buffers out, nothing to consume. */
    takt_buffer two[2];
    while (takt_buffer_get(source, 1, LONG_TIME, &two[0]) != 0) {
    }
    CHECK(takt_buffer_get(source, 1, LONG_TIME, &two[1]) == 0);
    CHECK(takt_buffer_get(source, 1, TAKT_NOWAIT, &buffer) == TAKT_E_WOULD_BLOCK);
    CHECK(buffer.data == NULL);
    CHECK(takt_buffer_get(source, 1, 1000, &buffer) == TAKT_E_TIMED_OUT);
    CHECK(takt_consume(sink, TAKT_NOWAIT, &buffer) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_consume(sink, 1000, &buffer) == TAKT_E_TIMED_OUT);
    CHECK(strstr(takt_last_error(), "deadline") != NULL);

    /* Sources and sinks of the other kind. */
    WRONG(takt_source_fd(source));
    WRONG(takt_source_arm(source, 1));
    WRONG(takt_sink_fd(sink));
    WRONG(takt_sink_arm(sink));
    WRONG(takt_sink_failure(sink));
    CHECK(takt_sink_open(stream, 2, nothing, NULL, &called) == 0);
    WRONG(takt_consume(called, 0, &buffer));
    WRONG(takt_data_available(called));
    WRONG(takt_sink_read_counters(called, &counters));
    takt_sink_options both = TAKT_SINK_OPTIONS_INIT;
    both.callback = nothing;
    both.notify_fd = 1;
    takt_sink *neither;
    WRONG(takt_sink_open_with(stream, 2, &both, &neither));

    /* Every code has a sentence, and no other has. */
    for (int code = TAKT_E_CLOSED; code < 0; code++) {
        CHECK(strlen(takt_strerror(code)) > 10);
        CHECK(strstr(takt_strerror(code), "unknown") == NULL);
    }
    CHECK(strstr(takt_strerror(TAKT_E_NOT_AVAILABLE - 1), "unknown") != NULL);
    CHECK(strcmp(takt_strerror(0), "success") == 0);

    takt_sink_close(called);
    takt_sink_close(sink);
    takt_source_close(other);
    takt_source_close(source);
    takt_stream_close(stream);
    takt_session_close(session);
    return 0;
}
