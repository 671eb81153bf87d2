/* Topics: everything that takt.h has for them, and what is wrong. */
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>

#include "check.h"

static size_t fill(void *user, void *memory, size_t most) {
    CHECK(most == 8);
    ++*(int *)user;
    memcpy(memory, "filled", 6);
    return 6;
}

static size_t fill_too_much(void *user, void *memory, size_t most) {
    (void)user, (void)memory;
    return most + 1;
}

static void next(takt_subscriber *subscriber, const char *topic, const char *text, int kept) {
    takt_sample sample, copy;
    CHECK(takt_take(subscriber, LONG_TIME, &sample) == 0);
    CHECK(strcmp(sample.topic, topic) == 0 && sample.kept == kept && sample.send_time_ns > 0);
    CHECK(sample.length == strlen(text) && memcmp(sample.data, text, sample.length) == 0);
    copy = sample;
    CHECK(takt_sample_release(subscriber, &sample) == 0 && sample.data == NULL);
    CHECK(takt_sample_release(subscriber, &sample) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_sample_release(subscriber, &copy) == TAKT_E_INVALID_ARGUMENT);
}

static void *wake(void *subscriber) {
    CHECK(takt_subscriber_wake((takt_subscriber *)subscriber) == 0);
    return NULL;
}

static void called(void *user, const takt_sample *sample) {
    if (sample->length == 4 && memcmp(sample->data, "last", 4) == 0 && strcmp(sample->topic, "c/1") == 0) {
        sem_post((sem_t *)user);
    }
}

struct seen {
    int topics;
    unsigned publishers;
};

static void see(void *user, const takt_topic *topic) {
    struct seen *seen = (struct seen *)user;
    seen->topics++;
    if (strcmp(topic->name, "c/1") == 0) {
        seen->publishers = topic->publishers;
    }
}

static void wrong(takt_participant *participant, takt_publisher *publisher) {
    takt_publisher_options writes = TAKT_PUBLISHER_OPTIONS_INIT;
    takt_subscriber_options reads = TAKT_SUBSCRIBER_OPTIONS_INIT;
    takt_publisher *none = NULL;
    takt_subscriber *nobody = NULL;
    CHECK(takt_participant_open(NULL, NULL, &participant) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publisher_open(participant, NULL, NULL, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publisher_open(participant, "/a", NULL, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(strstr(takt_last_error(), "empty level") != NULL && none == NULL);
    writes.encoding = 65536;
    CHECK(takt_publisher_open(participant, "a", &writes, &none) == TAKT_E_INVALID_ARGUMENT);
    writes.encoding = TAKT_JSON;
    writes.history = 65537;
    CHECK(takt_publisher_open(participant, "a", &writes, &none) == TAKT_E_INVALID_ARGUMENT);
    writes.size = 3;
    CHECK(takt_publisher_open(participant, "a", &writes, &none) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_subscriber_open(participant, "a*", NULL, &nobody) == TAKT_E_INVALID_ARGUMENT);
    reads.callback = called;
    reads.notify_fd = 1;
    CHECK(takt_subscriber_open(participant, "a", &reads, &nobody) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publish(publisher, NULL, 1, TAKT_NOWAIT, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publish(publisher, "", 0, -2, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publish(publisher, "x", (size_t)1 << 62, TAKT_NOWAIT, NULL) == TAKT_E_TOO_LARGE);
    CHECK(strstr(takt_last_error(), "4611686018427387904") != NULL);
    CHECK(takt_publisher_max_message(publisher) > 0);
    CHECK(takt_publisher_max_message(NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publish(publisher, "x", SIZE_MAX, TAKT_NOWAIT, NULL) == TAKT_E_TOO_LARGE);
    CHECK(takt_publish_fill(publisher, 8, TAKT_NOWAIT, NULL, NULL, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publish_fill(publisher, 8, LONG_TIME, fill_too_much, NULL, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publish_fill(publisher, SIZE_MAX, LONG_TIME, fill, NULL, NULL) == TAKT_E_TOO_LARGE);
    CHECK(takt_publish_outcome(publisher, -1) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_topics(participant, 0, 0, NULL, NULL) == TAKT_E_INVALID_ARGUMENT);
}

/* Of five messages that it may keep a publisher has as many as their bytes allow. */
static void bytes_are_bounded(takt_participant *writer, takt_participant *reader) {
    takt_publisher_options writes = TAKT_PUBLISHER_OPTIONS_INIT;
    takt_subscriber_options reads = TAKT_SUBSCRIBER_OPTIONS_INIT;
    const char *const messages[] = {"one", "two", "six"};
    takt_publisher *publisher;
    takt_subscriber *subscriber;
    int64_t token;
    int at;
    writes.history = reads.history = 5;
    writes.history_bytes = 2 * (24 + 3);
    CHECK(takt_publisher_open(writer, "c/kept", &writes, &publisher) == 0);
    CHECK(takt_publisher_warning(publisher, NULL, 0) == 0);
    for (at = 0; at < 3; ++at) {
        CHECK(takt_publish(publisher, messages[at], 3, LONG_TIME, &token) == 0);
        while (takt_publish_outcome(publisher, token) == TAKT_PENDING) {
            sched_yield();
        }
    }
    CHECK(takt_subscriber_open(reader, "c/kept", &reads, &subscriber) == 0);
    next(subscriber, "c/kept", "two", 1);
    next(subscriber, "c/kept", "six", 1);
    takt_subscriber_close(subscriber);
    takt_publisher_close(publisher);
}

/* Another topic is written on the channel of c/2, which is the beginning of SHA-256("topic/c/2") with its highest bit. */
static void collisions_are_told(takt_session *session, takt_participant *reader) {
    const uint64_t channel = UINT64_C(0xe9e7c8bc106647ab);
    const char foreign[24] = {1}; /* a header as docs/reference/topics.md has it */
    takt_subscriber_counters counters = TAKT_SUBSCRIBER_COUNTERS_INIT;
    takt_subscriber *subscriber;
    takt_stream *stream;
    takt_source *source;
    takt_sample sample;
    char text[200];
    int length;
    CHECK(takt_subscriber_open(reader, "c/2", NULL, &subscriber) == 0);
    CHECK(takt_subscriber_warning(subscriber, text, sizeof text) == 0 && text[0] == 0);
    CHECK(takt_stream_open(session, NULL, &stream) == 0);
    CHECK(takt_source_open(stream, channel, 0, &source) == 0);
    CHECK(takt_emit_copy(source, foreign, sizeof foreign, LONG_TIME, NULL) == 0);
    while (counters.foreign == 0) {
        CHECK(takt_take(subscriber, TAKT_NOWAIT, &sample) == TAKT_E_WOULD_BLOCK);
        CHECK(takt_subscriber_read_counters(subscriber, &counters) == 0);
    }
    length = takt_subscriber_warning(subscriber, NULL, 0);
    CHECK(length > 0 && takt_subscriber_warning(subscriber, text, sizeof text) == length);
    CHECK(strstr(text, "another topic") != NULL && strstr(text, "c/2") != NULL);
    takt_source_close(source);
    takt_stream_close(stream);
    takt_subscriber_close(subscriber);
}

/* A pattern gives back what nobody writes any more. */
static void patterns_are_pruned(takt_participant *writer, takt_participant *reader) {
    takt_publisher *stays, *goes;
    takt_subscriber *pattern, *name;
    takt_sample sample;
    int met, pruned;
    CHECK(takt_publisher_open(writer, "p/stays", NULL, &stays) == 0);
    CHECK(takt_publisher_open(writer, "p/goes", NULL, &goes) == 0);
    CHECK(takt_subscriber_open(reader, "p/*", NULL, &pattern) == 0);
    CHECK(takt_subscriber_open(reader, "p/stays", NULL, &name) == 0);
    do {
        CHECK(takt_publish(goes, "tried", 5, LONG_TIME, NULL) == 0);
        met = takt_take(pattern, 10000000, &sample);
        CHECK(met == 0 || met == TAKT_E_TIMED_OUT);
    } while (met != 0);
    CHECK(takt_subscriber_prune(pattern) == TAKT_E_INVALID_ARGUMENT);
    CHECK(strstr(takt_last_error(), "release them") != NULL);
    CHECK(takt_sample_release(pattern, &sample) == 0);
    CHECK(takt_subscriber_prune(pattern) == 0);
    takt_publisher_close(goes);
    do { /* It is left for as long as it may come back, and until its last message is taken. */
        if (takt_take(pattern, 10000000, &sample) == 0) {
            CHECK(takt_sample_release(pattern, &sample) == 0);
        }
        pruned = takt_subscriber_prune(pattern);
        CHECK(pruned >= 0 && takt_subscriber_prune(name) == 0);
    } while (pruned == 0);
    CHECK(pruned == 1);
    CHECK(takt_subscriber_warning(pattern, NULL, 0) == 0);
    CHECK(takt_publish(stays, "last", 4, LONG_TIME, NULL) == 0);
    next(pattern, "p/stays", "last", 0);
    takt_subscriber_close(name);
    takt_subscriber_close(pattern);
    takt_publisher_close(stays);
}

int main(void) {
    takt_session *session;
    takt_participant *participant, *other;
    takt_publisher_options writes = TAKT_PUBLISHER_OPTIONS_INIT;
    takt_subscriber_options reads = TAKT_SUBSCRIBER_OPTIONS_INIT;
    takt_subscriber_counters counters = TAKT_SUBSCRIBER_COUNTERS_INIT;
    takt_qos qos = TAKT_QOS_INIT;
    takt_publisher *publisher;
    takt_subscriber *subscriber, *pattern, *task;
    takt_sample sample;
    struct pollfd ready;
    struct seen seen;
    pthread_t thread;
    int64_t token;
    uint64_t lost = 7;
    int fills = 0;
    sem_t last;
    memset(&sample, 0, sizeof sample);
    CHECK(takt_session_open(NULL, &session) == 0);
    CHECK(takt_participant_open(session, "writer", &participant) == 0);
    CHECK(takt_participant_open(session, NULL, &other) == 0);
    qos.reliability = TAKT_RELIABLE;
    writes.qos = &qos;
    writes.history = 2;
    writes.encoding = TAKT_TEXT;
    CHECK(takt_publisher_open(participant, "c/1", &writes, &publisher) == 0);
    wrong(participant, publisher);
    CHECK(takt_publisher_wait_subscriber(publisher, TAKT_NOWAIT) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_publish(publisher, "one", 3, LONG_TIME, &token) == 0 && token == 0);
    while (takt_publish_outcome(publisher, token) == TAKT_PENDING) { /* A subscriber would get it as it comes. */
        sched_yield();
    }

    /* One that takes, by a descriptor; what was kept comes first. */
    reads.history = 5;
    reads.notify_fd = 1;
    CHECK(takt_subscriber_open(other, "c/1", &reads, &subscriber) == 0);
    next(subscriber, "c/1", "one", 1);
    CHECK(takt_publish_fill(publisher, 8, LONG_TIME, fill, &fills, &token) == 0 && fills == 1 && token == 1);
    while (takt_subscriber_arm(subscriber) == 1) {
        ready.fd = takt_subscriber_fd(subscriber);
        ready.events = POLLIN;
        CHECK(ready.fd >= 0 && poll(&ready, 1, 60000) == 1);
        if (takt_take(subscriber, TAKT_NOWAIT, &sample) == 0) {
            break;
        }
    }
    if (sample.data == NULL) {
        CHECK(takt_take(subscriber, LONG_TIME, &sample) == 0);
    }
    CHECK(sample.length == 6 && memcmp(sample.data, "filled", 6) == 0 && sample.encoding == TAKT_TEXT);
    CHECK(sample.number == 1 && sample.kept == 0);
    CHECK(takt_publish_outcome(publisher, token) == TAKT_PENDING);
    CHECK(takt_sample_release(subscriber, &sample) == 0);
    CHECK(takt_take(subscriber, TAKT_NOWAIT, &sample) == TAKT_E_WOULD_BLOCK);
    CHECK(takt_take(subscriber, 1000, &sample) == TAKT_E_TIMED_OUT);
    CHECK(pthread_create(&thread, NULL, wake, subscriber) == 0);
    CHECK(takt_take(subscriber, TAKT_FOREVER, &sample) == TAKT_E_INTERRUPTED);
    CHECK(pthread_join(thread, NULL) == 0);

    /* A pattern, and a function. */
    CHECK(takt_subscriber_open(other, "c/*", NULL, &pattern) == 0);
    CHECK(sem_init(&last, 0, 0) == 0);
    reads.history = 0;
    reads.notify_fd = 0;
    reads.callback = called;
    reads.user = &last;
    CHECK(takt_subscriber_open(other, "c/1", &reads, &task) == 0);
    CHECK(takt_take(task, TAKT_NOWAIT, &sample) == TAKT_E_INVALID_ARGUMENT);
    do { /* It reads what it has heard of. */
        CHECK(takt_publish(publisher, "tried", 5, LONG_TIME, NULL) == 0);
    } while (takt_take(pattern, 10000000, &sample) == TAKT_E_TIMED_OUT);
    CHECK(takt_sample_release(pattern, &sample) == 0);
    CHECK(takt_publish(publisher, "last", 4, LONG_TIME, NULL) == 0);
    CHECK(sem_wait(&last) == 0);
    CHECK(takt_subscriber_failure(task) == 0);
    CHECK(takt_subscriber_failure(pattern) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_subscriber_read_counters(subscriber, &counters) == 0);
    CHECK(counters.foreign == 0 && counters.malformed == 0 && counters.channels.delivered >= 2);

    memset(&seen, 0, sizeof seen);
    CHECK(takt_topics(other, 300000000, LONG_TIME, see, &seen) == 1 && seen.topics == 1 && seen.publishers == 1);

    CHECK(takt_subscriber_warning(task, NULL, 0) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_subscriber_prune(task) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_subscriber_prune(NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publisher_warning(NULL, NULL, 0) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_participant_problem(NULL, NULL, 0) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_participant_problem(participant, NULL, 0) == 0);
    CHECK(takt_publisher_lost(publisher, NULL) == TAKT_E_INVALID_ARGUMENT);
    CHECK(takt_publisher_lost(publisher, &lost) == 0 && lost == 0);
    bytes_are_bounded(participant, other);
    collisions_are_told(session, other);
    patterns_are_pruned(participant, other);

    /* In any order, with what is held. */
    takt_participant_close(participant);
    takt_session_close(session);
    takt_subscriber_close(task);
    takt_participant_close(other);
    takt_publisher_close(publisher);
    CHECK(takt_take(subscriber, LONG_TIME, &sample) == 0);
    takt_subscriber_close(subscriber);
    takt_subscriber_close(pattern);
    takt_subscriber_close(NULL);
    takt_publisher_close(NULL);
    takt_participant_close(NULL);
    return 0;
}
