/* Streams of frames: everything that takt.h has for them, and what is wrong. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>

#include "check.h"

enum { WIDTH = 64, HEIGHT = 48, BYTES = WIDTH * HEIGHT * 3 };

static unsigned char pixel(uint64_t number, size_t at) {
    return (unsigned char)(at * 31 / 32 + number * 7);
}

struct filled {
    uint64_t number;
    size_t expected;
    takt_video_server *server;
};

static void fill(void *user, size_t offset, void *memory, size_t length) {
    struct filled *filled = (struct filled *)user;
    size_t at;
    CHECK(offset == filled->expected && offset + length <= BYTES);
    CHECK(takt_video_server_wait_client(filled->server, TAKT_NOWAIT) == TAKT_E_INVALID_ARGUMENT);
    for (at = 0; at < length; ++at) {
        ((unsigned char *)memory)[at] = pixel(filled->number, offset + at);
    }
    filled->expected += length;
}

static void next(takt_video_client *client, uint64_t number) {
    takt_video_frame frame, copy;
    size_t at;
    CHECK(takt_video_next(client, LONG_TIME, &frame) == 0);
    CHECK(frame.number == number && frame.length == BYTES && frame.holes == NULL && frame.hole_count == 0);
    CHECK(frame.format.pixels == TAKT_PIXELS_RGB && frame.format.width == WIDTH && frame.format.height == HEIGHT);
    CHECK(frame.period_ns == 20000000 && frame.completed_ns > 0);
    CHECK(number == 1 ? frame.captured_ns == 5 : frame.captured_ns <= frame.completed_ns);
    for (at = 0; at < BYTES; ++at) {
        CHECK(((const unsigned char *)frame.data)[at] == pixel(number, at));
    }
    copy = frame;
    CHECK(takt_video_frame_release(client, &frame) == 0 && frame.data == NULL);
    CHECK(takt_video_frame_release(client, &frame) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_video_frame_release(client, &copy) == TAKT_E_INVALID_ARGUMENT);
}

static void *wake(void *client) {
    CHECK(takt_video_client_wake((takt_video_client *)client) == 0);
    return NULL;
}

static void wrong(takt_participant *participant, takt_video_server *server) {
    takt_video_server_options serves = TAKT_VIDEO_SERVER_OPTIONS_INIT;
    takt_video_client_options views = TAKT_VIDEO_CLIENT_OPTIONS_INIT;
    takt_video_format format = {TAKT_PIXELS_UYVY, 3, 1};
    takt_video_server *none = NULL;
    takt_video_client *nobody = NULL;
    takt_video_frame frame;
    CHECK(takt_video_server_open(participant, "a", &format, NULL, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(strstr(takt_last_error(), "an even width") != NULL && none == NULL);
    format.pixels = 7;
    CHECK(takt_video_server_open(participant, "a", &format, NULL, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(strstr(takt_last_error(), "a TAKT_PIXELS_ number") != NULL);
    format.pixels = TAKT_PIXELS_GRAY;
    CHECK(takt_video_server_open(participant, "a", NULL, NULL, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_video_server_open(participant, "a/*", &format, NULL, &none) == TAKT_E_INVALID_ARGUMENT);
    serves.spread = 1;
    CHECK(takt_video_server_open(participant, "a", &format, &serves, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(strstr(takt_last_error(), "only over a known period") != NULL);
    serves.period_ns = 5000000000;
    CHECK(takt_video_server_open(participant, "a", &format, &serves, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_video_client_open(participant, "a/*", NULL, &nobody) == TAKT_E_INVALID_ARGUMENT);
    views.frames = 1025;
    CHECK(takt_video_client_open(participant, "a", &views, &nobody) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_video_send(server, NULL, 0, 0, TAKT_NOWAIT, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_video_send(server, "short", 5, 0, TAKT_NOWAIT, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_video_send(server, "x", SIZE_MAX, 0, TAKT_NOWAIT, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(strstr(takt_last_error(), "which has 9216") != NULL);
    CHECK(takt_video_send_fill(server, 0, TAKT_NOWAIT, NULL, NULL, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_video_next(NULL, TAKT_NOWAIT, &frame) == TAKT_E_INVALID_ARGUMENT);
}

/* A frame that does not fit the client's memory is passed over, and the next one is taken. */
static void memory_is_bounded(takt_participant *participant, takt_participant *other) {
    const takt_video_format large = {TAKT_PIXELS_RGB, WIDTH, HEIGHT}, small = {TAKT_PIXELS_BYTES, 5, 1};
    takt_video_server_options serves = TAKT_VIDEO_SERVER_OPTIONS_INIT;
    takt_video_client_options views = TAKT_VIDEO_CLIENT_OPTIONS_INIT;
    takt_video_client_counters counters = TAKT_VIDEO_CLIENT_COUNTERS_INIT;
    static const unsigned char pixels[BYTES] = {0};
    takt_qos qos = TAKT_QOS_INIT;
    takt_video_server *server;
    takt_video_client *client;
    takt_video_frame frame;
    qos.reliability = TAKT_RELIABLE;
    serves.qos = &qos;
    views.all = 1;
    views.memory = BYTES - 1;
    CHECK(takt_video_server_open(participant, "v/memory", &large, &serves, &server) == 0);
    CHECK(takt_video_client_open(other, "v/memory", &views, &client) == 0);
    CHECK(takt_video_server_wait_client(server, LONG_TIME) == 1);
    CHECK(takt_video_send(server, pixels, BYTES, 0, LONG_TIME, NULL) == 0);
    CHECK(takt_video_server_set_format(server, &small) == 0);
    CHECK(takt_video_send(server, "bytes", 5, 0, LONG_TIME, NULL) == 0);
    CHECK(takt_video_next(client, LONG_TIME, &frame) == 0 && frame.number == 1 && frame.length == 5);
    do { /* It may be shown after the frame. */
        sched_yield();
        CHECK(takt_video_client_read_counters(client, &counters) == 0);
    } while (counters.no_memory == 0);
    CHECK(counters.no_memory == 1 && counters.skipped == 0 && counters.frames == 1 && counters.too_large == 0);
    takt_video_client_close(client);
    takt_video_server_close(server);
}

int main(void) {
    takt_session *session;
    takt_participant *participant, *other;
    takt_video_server_options serves = TAKT_VIDEO_SERVER_OPTIONS_INIT;
    takt_video_client_options views = TAKT_VIDEO_CLIENT_OPTIONS_INIT;
    takt_video_client_counters counters = TAKT_VIDEO_CLIENT_COUNTERS_INIT;
    takt_video_format format = {TAKT_PIXELS_RGB, WIDTH, HEIGHT}, small = {TAKT_PIXELS_BYTES, 5, 1};
    takt_qos qos = TAKT_QOS_INIT;
    takt_video_server *server;
    takt_video_client *client;
    takt_video_frame frame;
    struct filled filled = {1, 0, NULL};
    struct pollfd ready;
    pthread_t thread;
    uint64_t number;
    static unsigned char pixels[BYTES];
    size_t at;
    CHECK(takt_session_open(NULL, &session) == 0);
    CHECK(takt_participant_open(session, "camera", &participant) == 0);
    CHECK(takt_participant_open(session, NULL, &other) == 0);
    qos.reliability = TAKT_RELIABLE;
    serves.qos = &qos;
    serves.period_ns = 20000000;
    serves.slice = 1000;
    CHECK(takt_video_server_open(participant, "v/1", &format, &serves, &server) == 0);
    wrong(participant, server);
    CHECK(takt_video_server_wait_client(server, TAKT_NOWAIT) == TAKT_E_WOULD_BLOCK);
    views.all = 1;
    CHECK(takt_video_client_open(other, "v/1", &views, &client) == 0);
    CHECK(takt_video_next(client, TAKT_NOWAIT, &frame) == TAKT_E_WOULD_BLOCK && frame.data == NULL);
    CHECK(takt_video_next(client, 1000, &frame) == TAKT_E_TIMED_OUT);
    CHECK(pthread_create(&thread, NULL, wake, client) == 0);
    CHECK(takt_video_next(client, TAKT_FOREVER, &frame) == TAKT_E_INTERRUPTED);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(takt_video_server_wait_client(server, LONG_TIME) == 1);

    for (at = 0; at < BYTES; ++at) {
        pixels[at] = pixel(0, at);
    }
    CHECK(takt_video_send(server, pixels, BYTES, 0, LONG_TIME, &number) == 0 && number == 0);
    filled.server = server;
    CHECK(takt_video_send_fill(server, 5, LONG_TIME, fill, &filled, &number) == 0 && number == 1);
    CHECK(filled.expected == BYTES);
    ready.fd = takt_video_client_fd(client);
    ready.events = POLLIN;
    CHECK(poll(&ready, 1, 60000) == 1);
    next(client, 0);
    next(client, 1);

    /* Of another format; held beyond the end. */
    CHECK(takt_video_server_set_format(server, &small) == 0);
    CHECK(takt_video_send(server, "bytes", 5, 0, LONG_TIME, NULL) == 0);
    takt_video_server_close(server);
    CHECK(takt_video_next(client, LONG_TIME, &frame) == 0 && frame.length == 5);
    CHECK(memcmp(frame.data, "bytes", 5) == 0 && frame.format.pixels == TAKT_PIXELS_BYTES);
    CHECK(takt_video_next(client, LONG_TIME, &frame) == 1 && frame.data == NULL);
    CHECK(takt_video_next(client, TAKT_NOWAIT, &frame) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_video_client_read_counters(client, &counters) == 0);
    CHECK(counters.frames == 3 && counters.incomplete == 0 && counters.slices.malformed == 0);

    memory_is_bounded(participant, other);

    /* In any order. */
    takt_participant_close(participant);
    takt_participant_close(other);
    CHECK(takt_session_end(session) == 0);
    CHECK(takt_video_next(client, LONG_TIME, &frame) == TAKT_E_CLOSED);
    takt_session_close(session);
    takt_video_client_close(client);
    takt_video_client_close(NULL);
    takt_video_server_close(NULL);
    return 0;
}
