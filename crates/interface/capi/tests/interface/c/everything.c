/* Every function of takt.h in its ordinary use. */

#include <poll.h>
#include <time.h>

#include "check.h"

#define CHANNEL 42

static takt_session *session;
static takt_stream *stream;
static takt_source *source;
static takt_sink *sink;

static int64_t emit(const char *text) {
    takt_buffer buffer;
    int64_t token = -1;
    CHECK(takt_buffer_get(source, strlen(text), LONG_TIME, &buffer) == 0);
    CHECK(buffer.length == strlen(text));
    memcpy(buffer.data, text, buffer.length);
    CHECK(takt_emit(source, &buffer, &token) == 0);
    CHECK(buffer.data == NULL && buffer.length == 0);
    CHECK(token >= 0);
    return token;
}

static void expect(const char *text) {
    takt_buffer message;
    CHECK(takt_consume(sink, LONG_TIME, &message) == 0);
    CHECK(message.length == strlen(text));
    CHECK(memcmp(message.data, text, message.length) == 0);
    CHECK(takt_release(sink, &message) == 0);
    CHECK(message.data == NULL);
}

static void outcomes(void) {
    int64_t first = emit("first");
    expect("first");
    while (takt_emit_outcome(source, first) == TAKT_PENDING) {
    }
    CHECK(takt_emit_outcome(source, first) == TAKT_SENT);
    CHECK(takt_emit_outcome(source, first + 1) == TAKT_UNKNOWN);
    CHECK(takt_emit_outcome(source, -1) == TAKT_E_INVALID_ARGUMENT);
    CHECK(emit("second") == first + 1);
    expect("second");

    takt_source *alone;
    takt_buffer buffer;
    int64_t token;
    CHECK(takt_source_open(stream, CHANNEL + 1, 4, &alone) == 0);
    CHECK(takt_buffer_get(alone, 0, TAKT_NOWAIT, &buffer) == 0);
    CHECK(takt_emit(alone, &buffer, &token) == 0);
    while (takt_emit_outcome(alone, token) == TAKT_PENDING) {
    }
    CHECK(takt_emit_outcome(alone, token) == TAKT_NO_SINK);
    takt_source_close(alone);
}

static void bursts_and_launch_times(void) {
    takt_buffer buffer;
    struct timespec now;
    for (int i = 0; i < 10; i++) {
        CHECK(takt_buffer_get(source, 1, LONG_TIME, &buffer) == 0);
        *(char *)buffer.data = (char)('0' + i);
        CHECK(takt_emit_more(source, &buffer, NULL) == 0);
    }
    CHECK(takt_flush(source) == 0);
    for (int i = 0; i < 10; i++) {
        char text[2] = {(char)('0' + i), 0};
        expect(text);
    }
    clock_gettime(CLOCK_TAI, &now);
    CHECK(takt_buffer_get(source, 100, LONG_TIME, &buffer) == 0);
    memcpy(buffer.data, "timed", 5);
    buffer.length = 5; /* less than asked for */
    CHECK(takt_emit_at(source, &buffer, now.tv_sec * 1000000000LL + now.tv_nsec, NULL) == 0);
    expect("timed");

    /* Sinks here wait for the launch time, too, unless they are to have it at once. */
    takt_source *later;
    takt_sink *there;
    CHECK(takt_source_open(stream, CHANNEL + 2, 0, &later) == 0);
    CHECK(takt_sink_open(stream, CHANNEL + 2, NULL, NULL, &there) == 0);
    for (int at_once = 0; at_once < 2; at_once++) {
        CHECK(takt_source_at_once_here(later, at_once) == 0);
        CHECK(takt_buffer_get(later, 1, LONG_TIME, &buffer) == 0);
        *(char *)buffer.data = (char)('0' + at_once);
        CHECK(takt_emit_at(later, &buffer, (now.tv_sec + 30) * 1000000000LL, NULL) == 0);
    }
    CHECK(takt_consume(there, LONG_TIME, &buffer) == 0);
    CHECK(*(const char *)buffer.data == '1');
    CHECK(takt_release(there, &buffer) == 0);
    CHECK(takt_consume(there, TAKT_NOWAIT, &buffer) == TAKT_E_WOULD_BLOCK);
    takt_sink_close(there);
    takt_source_close(later);
    CHECK(takt_source_at_once_here(NULL, 1) == TAKT_E_INVALID_ARGUMENT);
}

static void many_at_once(void) {
    takt_buffer buffers[20], messages[20];
    takt_message_info info = TAKT_MESSAGE_INFO_INIT, before;
    for (int i = 0; i < 20; i++) {
        CHECK(takt_buffer_get(source, sizeof(int), LONG_TIME, &buffers[i]) == 0);
        memcpy(buffers[i].data, &i, sizeof i);
    }
    CHECK(takt_buffer_abandon(source, &buffers[7]) == 0);
    CHECK(buffers[7].data == NULL);
    for (int i = 0; i < 20; i++) {
        if (i != 7) {
            CHECK(takt_emit(source, &buffers[i], NULL) == 0);
        }
    }
    for (int i = 0; i < 19; i++) {
        CHECK(takt_consume(sink, LONG_TIME, &messages[i]) == 0);
        CHECK(takt_message_information(sink, &messages[i], &info) == 0);
        CHECK(info.send_time_ns > 0 && info.traffic_class == 6);
        CHECK(i == 0 || (info.sender == before.sender && info.sequence == before.sequence + 1));
        before = info;
    }
    for (int i = 18; i >= 0; i--) {
        int number = i < 7 ? i : i + 1;
        CHECK(memcmp(messages[i].data, &number, sizeof number) == 0);
        CHECK(takt_release(sink, &messages[i]) == 0);
    }
}

static void large_messages(void) {
    takt_buffer buffer, message;
    int max = takt_source_max_message(source);
    CHECK(max >= 16 << 20);
    CHECK(takt_buffer_get(source, 16 << 20, LONG_TIME, &buffer) == 0);
    memset(buffer.data, 0xa5, buffer.length);
    CHECK(takt_emit(source, &buffer, NULL) == 0);
    CHECK(takt_consume(sink, LONG_TIME, &message) == 0);
    CHECK(message.length == 16 << 20);
    for (size_t i = 0; i < message.length; i += 4096) {
        CHECK(((unsigned char *)message.data)[i] == 0xa5);
    }
    CHECK(takt_release(sink, &message) == 0);
    CHECK(takt_buffer_get(source, (size_t)max + 1, TAKT_NOWAIT, &buffer) == TAKT_E_TOO_LARGE);
}

static void memory_that_is_kept(void) {
    takt_buffer buffer, message, gone;
    takt_mapping *sent, *received, *none;
    CHECK(takt_buffer_get(source, 1, LONG_TIME, &buffer) == 0);
    CHECK(takt_buffer_mapping(source, &buffer, &sent) == 0);
    CHECK(takt_emit(source, &buffer, NULL) == 0);
    CHECK(takt_buffer_mapping(source, &buffer, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_consume(sink, LONG_TIME, &message) == 0);
    CHECK(takt_message_mapping(sink, &message, &received) == 0);
    gone = message;
    CHECK(takt_release(sink, &message) == 0);
    CHECK(takt_message_mapping(sink, &gone, &none) == TAKT_E_INVALID_ARGUMENT && none == NULL);
    CHECK(takt_message_mapping(sink, &gone, NULL) == TAKT_E_INVALID_ARGUMENT);
    takt_mapping_close(sent);
    takt_mapping_close(received);
    takt_mapping_close(NULL);
}

static void event_loop(void) {
    takt_sink_options options = TAKT_SINK_OPTIONS_INIT;
    takt_sink *polled;
    takt_buffer message;
    options.notify_fd = 1;
    options.depth = 64;
    CHECK(takt_sink_open_with(stream, CHANNEL, &options, &polled) == 0);
    struct pollfd fd = {takt_sink_fd(polled), POLLIN, 0};
    CHECK(fd.fd >= 0);
    CHECK(takt_consume(polled, TAKT_NOWAIT, &message) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_sink_arm(polled) == 1);
    CHECK(poll(&fd, 1, 0) == 0);
    emit("event");
    CHECK(poll(&fd, 1, 60000) == 1);
    CHECK(takt_sink_arm(polled) == 0);
    CHECK(takt_consume(polled, TAKT_NOWAIT, &message) == 0);
    CHECK(memcmp(message.data, "event", 5) == 0);
    takt_sink_close(polled); /* with a message held */
    expect("event");
}

static void event_loop_of_a_source(void) {
    takt_source_options options = TAKT_SOURCE_OPTIONS_INIT;
    takt_source *polled;
    takt_buffer one, two;
    options.depth = 1;
    options.notify_fd = 1;
    CHECK(takt_source_open_with(stream, CHANNEL, &options, &polled) == 0);
    struct pollfd fd = {takt_source_fd(polled), POLLIN, 0};
    CHECK(fd.fd >= 0);
    CHECK(takt_source_arm(polled, 5) == 0);
    CHECK(takt_buffer_get(polled, 5, TAKT_NOWAIT, &one) == 0);
    CHECK(takt_buffer_get(polled, 5, TAKT_NOWAIT, &two) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_source_arm(polled, 5) == 1);
    CHECK(poll(&fd, 1, 0) == 0);
    CHECK(takt_buffer_abandon(polled, &one) == 0);
    CHECK(poll(&fd, 1, 60000) == 1);
    CHECK(takt_source_arm(polled, 5) == 0);
    for (int number = 0; number < 100; number++) {
        while (takt_buffer_get(polled, 5, TAKT_NOWAIT, &one) == TAKT_E_WOULD_BLOCK) {
            if (takt_source_arm(polled, 5) == 1) {
                CHECK(poll(&fd, 1, 60000) == 1);
            }
        }
        memcpy(one.data, "room!", 5);
        CHECK(takt_emit(polled, &one, NULL) == 0);
        expect("room!");
    }
    takt_source_close(polled);
    CHECK(takt_source_open_with(stream, CHANNEL, NULL, &polled) == 0);
    CHECK(takt_source_fd(polled) == TAKT_E_INVALID_ARGUMENT);
    takt_source_close(polled);
}

struct seen {
    int count;
    takt_sink *closes_itself;
};

static void receive(void *user, const takt_buffer *message, const takt_message_info *info) {
    struct seen *seen = (struct seen *)user;
    CHECK(message->length == 4 && memcmp(message->data, "call", 4) == 0);
    CHECK(info->send_time_ns > 0);
    takt_sink *itself = __atomic_load_n(&seen->closes_itself, __ATOMIC_ACQUIRE);
    if (itself != NULL) {
        takt_sink_close(itself);
    }
    __atomic_add_fetch(&seen->count, 1, __ATOMIC_RELEASE);
}

static void callbacks(void) {
    struct seen seen = {0, NULL};
    takt_sink *called;
    CHECK(takt_sink_open(stream, CHANNEL, receive, &seen, &called) == 0);
    CHECK(takt_sink_failure(called) == 0);
    for (int i = 0; i < 5; i++) {
        emit("call");
        expect("call");
    }
    while (__atomic_load_n(&seen.count, __ATOMIC_ACQUIRE) < 5) {
    }
    takt_sink_close(called);
    emit("last");
    expect("last");
    CHECK(seen.count == 5);

    CHECK(takt_sink_open(stream, CHANNEL, receive, &seen, &called) == 0);
    __atomic_store_n(&seen.closes_itself, called, __ATOMIC_RELEASE);
    emit("call");
    expect("call");
    while (__atomic_load_n(&seen.count, __ATOMIC_ACQUIRE) < 6) {
    }
}

int main(void) {
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    options.name = "everything";
    options.request_timeout_ns = 60ULL * 1000 * 1000 * 1000;
    CHECK(takt_session_open(&options, &session) == 0);
    CHECK(takt_session_attached(session) == 1);

    takt_qos qos = TAKT_QOS_INIT;
    qos.acceleration = TAKT_FAST;
    qos.time_sensitivity = TAKT_TIME_SENSITIVE;
    qos.traffic_class = 6;
    char text[200];
    CHECK(takt_stream_open(session, &qos, &stream) == 0);
    int length = takt_stream_datapath(stream, text, sizeof text);
    CHECK(length > 0 && (size_t)length == strlen(text));
    CHECK(takt_stream_datapath(stream, text, 2) == length && strlen(text) == 1);
    CHECK(takt_stream_datapath(stream, NULL, 0) == length);
    CHECK(takt_stream_warning(stream, text, sizeof text) > 0); /* this runtime has kernel UDP alone */

    CHECK(takt_source_open(stream, CHANNEL, 0, &source) == 0);
    CHECK(takt_sink_open(stream, CHANNEL, NULL, NULL, &sink) == 0);
    CHECK(takt_data_available(sink) == 0);
    emit("counted");
    while (takt_data_available(sink) == 0) {
    }
    CHECK(takt_data_available(sink) == 1);
    expect("counted");

    outcomes();
    bursts_and_launch_times();
    many_at_once();
    large_messages();
    memory_that_is_kept();
    event_loop();
    event_loop_of_a_source();
    callbacks();

    takt_sink_counters counters = TAKT_SINK_COUNTERS_INIT;
    CHECK(takt_sink_read_counters(sink, &counters) == 0);
    CHECK(counters.delivered > 40 && counters.lost == 0 && counters.dropped_full == 0);
    uint64_t lost = 1;
    CHECK(takt_source_lost(source, &lost) == 0 && lost == 0);

    takt_buffer kept;
    CHECK(takt_buffer_get(source, 10, LONG_TIME, &kept) == 0);
    takt_session_close(session);
    emit("the source keeps the session");
    takt_stream_close(stream);
    takt_source_close(source); /* with a buffer out */
    expect("the source keeps the session");
    takt_sink_close(sink);

    CHECK(strcmp(takt_version(), "0.1.0") == 0);
    return 0;
}
