/* fork: the child may not use its parent's topics and streams of frames, may close them, and may open its own. */

#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

struct all {
    takt_session *session;
    takt_participant *participant;
    takt_publisher *publisher;
    takt_subscriber *subscriber, *task;
    takt_video_server *server;
    takt_video_client *client;
};

static void called(void *user, const takt_sample *sample) {
    (void)user, (void)sample;
}

static void open_all(struct all *all, const char *topic, const char *stream) {
    takt_subscriber_options reads = TAKT_SUBSCRIBER_OPTIONS_INIT;
    takt_video_format format = {TAKT_PIXELS_GRAY, 8, 1};
    reads.notify_fd = 1;
    CHECK(takt_session_open(NULL, &all->session) == 0);
    CHECK(takt_participant_open(all->session, NULL, &all->participant) == 0);
    CHECK(takt_publisher_open(all->participant, topic, NULL, &all->publisher) == 0);
    CHECK(takt_subscriber_open(all->participant, topic, &reads, &all->subscriber) == 0);
    reads.notify_fd = 0;
    reads.callback = called;
    CHECK(takt_subscriber_open(all->participant, topic, &reads, &all->task) == 0);
    CHECK(takt_video_client_open(all->participant, stream, NULL, &all->client) == 0);
    CHECK(takt_video_server_open(all->participant, stream, &format, NULL, &all->server) == 0);
}

static void close_all(struct all *all) {
    takt_video_server_close(all->server);
    takt_video_client_close(all->client);
    takt_subscriber_close(all->task);
    takt_subscriber_close(all->subscriber);
    takt_publisher_close(all->publisher);
    takt_participant_close(all->participant);
    takt_session_close(all->session);
}

static void round_trip(struct all *all) {
    takt_sample sample;
    takt_video_frame frame;
    CHECK(takt_publish(all->publisher, "trip", 4, LONG_TIME, NULL) == 0);
    CHECK(takt_take(all->subscriber, LONG_TIME, &sample) == 0);
    CHECK(sample.length == 4 && memcmp(sample.data, "trip", 4) == 0);
    CHECK(takt_sample_release(all->subscriber, &sample) == 0);
    CHECK(takt_video_send(all->server, "pictures", 8, 0, LONG_TIME, NULL) == 0);
    CHECK(takt_video_next(all->client, LONG_TIME, &frame) == 0);
    CHECK(frame.length == 8 && memcmp(frame.data, "pictures", 8) == 0);
    CHECK(takt_video_frame_release(all->client, &frame) == 0);
}

static void see(void *user, const takt_topic *topic) {
    (void)user, (void)topic;
}

static size_t fill(void *user, void *memory, size_t most) {
    (void)user, (void)memory;
    return most;
}

static void fill_frame(void *user, size_t offset, void *memory, size_t length) {
    (void)user, (void)offset, (void)memory, (void)length;
}

static void every_call_fails(struct all *all, takt_sample *held, takt_video_frame *frame) {
    takt_subscriber_counters counters = TAKT_SUBSCRIBER_COUNTERS_INIT;
    takt_video_client_counters frames = TAKT_VIDEO_CLIENT_COUNTERS_INIT;
    takt_video_format format = {TAKT_PIXELS_GRAY, 8, 1};
    takt_participant *nobody;
    uint64_t lost;
    takt_publisher *publisher;
    takt_subscriber *subscriber;
    takt_video_server *server;
    takt_video_client *client;
    takt_sample sample;
    takt_video_frame next;
    CHECK(takt_session_attached(all->session) == 0);
    CHECK(takt_participant_open(all->session, NULL, &nobody) == TAKT_E_FORKED);
    CHECK(takt_topics(all->participant, 0, 0, see, NULL) == TAKT_E_FORKED);
    CHECK(takt_participant_problem(all->participant, NULL, 0) == TAKT_E_FORKED);
    CHECK(takt_publisher_lost(all->publisher, &lost) == TAKT_E_FORKED);
    CHECK(takt_publisher_open(all->participant, "b", NULL, &publisher) == TAKT_E_FORKED);
    CHECK(takt_subscriber_open(all->participant, "b", NULL, &subscriber) == TAKT_E_FORKED);
    CHECK(takt_video_server_open(all->participant, "b", &format, NULL, &server) == TAKT_E_FORKED);
    CHECK(takt_video_client_open(all->participant, "b", NULL, &client) == TAKT_E_FORKED);
    CHECK(takt_publish(all->publisher, "x", 1, TAKT_FOREVER, NULL) == TAKT_E_FORKED);
    CHECK(takt_publish_fill(all->publisher, 1, TAKT_FOREVER, fill, NULL, NULL) == TAKT_E_FORKED);
    CHECK(takt_publish_outcome(all->publisher, 0) == TAKT_E_FORKED);
    CHECK(takt_publisher_wait_subscriber(all->publisher, TAKT_FOREVER) == TAKT_E_FORKED);
    CHECK(takt_publisher_warning(all->publisher, NULL, 0) == TAKT_E_FORKED);
    CHECK(takt_take(all->subscriber, TAKT_FOREVER, &sample) == TAKT_E_FORKED);
    CHECK(takt_sample_release(all->subscriber, held) == TAKT_E_FORKED);
    CHECK(takt_subscriber_wake(all->subscriber) == TAKT_E_FORKED);
    CHECK(takt_subscriber_fd(all->subscriber) == TAKT_E_FORKED);
    CHECK(takt_subscriber_arm(all->subscriber) == TAKT_E_FORKED);
    CHECK(takt_subscriber_warning(all->subscriber, NULL, 0) == TAKT_E_FORKED);
    CHECK(takt_subscriber_prune(all->subscriber) == TAKT_E_FORKED);
    CHECK(takt_subscriber_read_counters(all->subscriber, &counters) == TAKT_E_FORKED);
    CHECK(takt_subscriber_failure(all->task) == TAKT_E_FORKED);
    CHECK(takt_video_send(all->server, "pictures", 8, 0, TAKT_FOREVER, NULL) == TAKT_E_FORKED);
    CHECK(takt_video_send_fill(all->server, 0, TAKT_FOREVER, fill_frame, NULL, NULL) == TAKT_E_FORKED);
    CHECK(takt_video_server_wait_client(all->server, TAKT_FOREVER) == TAKT_E_FORKED);
    CHECK(takt_video_server_set_format(all->server, &format) == TAKT_E_FORKED);
    CHECK(takt_video_next(all->client, TAKT_FOREVER, &next) == TAKT_E_FORKED);
    CHECK(takt_video_frame_release(all->client, frame) == TAKT_E_FORKED);
    CHECK(takt_video_client_wake(all->client) == TAKT_E_FORKED);
    CHECK(takt_video_client_fd(all->client) == TAKT_E_FORKED);
    CHECK(takt_video_client_read_counters(all->client, &frames) == TAKT_E_FORKED);
}

int main(void) {
    struct all all, own;
    takt_sample held;
    takt_video_frame frame;
    open_all(&all, "c/fork", "c/fork/frames");
    round_trip(&all);
    CHECK(takt_publish(all.publisher, "held", 4, LONG_TIME, NULL) == 0);
    CHECK(takt_take(all.subscriber, LONG_TIME, &held) == 0);
    CHECK(takt_video_send(all.server, "pictures", 8, 0, LONG_TIME, NULL) == 0);
    CHECK(takt_video_next(all.client, LONG_TIME, &frame) == 0);
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            every_call_fails(&all, &held, &frame);
            if (round == 1) {
                close_all(&all);
            }
            if (round == 2) {
                open_all(&own, "c/own", "c/own/frames");
                round_trip(&own);
                every_call_fails(&all, &held, &frame);
                close_all(&own);
            }
            exit(0); /* with all exit handlers */
        }
        int status;
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        round_trip(&all);
    }
    CHECK(memcmp(held.data, "held", 4) == 0 && memcmp(frame.data, "pictures", 8) == 0);
    CHECK(takt_sample_release(all.subscriber, &held) == 0);
    CHECK(takt_video_frame_release(all.client, &frame) == 0);
    close_all(&all);
    return 0;
}
