/*
 * One benchmark over any network: round trips, and messages one way at full speed. A program includes this behind its
 * five functions (table 7.2 of "Network Acceleration as a Service" counts what they take).
 *
 *     NAME serve ARGUMENTS...                  answers until it is ended
 *     NAME ping COUNT LENGTH ARGUMENTS...      round trips: minimum, median, 99th percentile in ns
 *     NAME stream COUNT LENGTH ARGUMENTS...    one way: messages that arrived, and how many a second until
 *                                              the server had counted them
 */
#ifndef BENCHMARK_H
#define BENCHMARK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Makes ready to exchange messages with the other side; ends the program if that fails. */
static void network_open(bool server, char **arguments);
/* Memory for a message, the only one that is being written; NULL: there is no room now. */
static void *network_buffer(size_t length);
/* Sends it: to the server, or to whom the last message came from. */
static void network_send(size_t length);
/* The length of the next message; 0: none has come. It is there to read until network_release(). */
static size_t network_receive(void **message);
static void network_release(void);

enum kind { ECHO = 1, COUNT, ASK };

/* How each message begins. */
struct header {
    uint32_t kind;
    uint32_t number;
    uint64_t counted; /* of those to be counted, in an answer */
};

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "cannot %s\n", what);
    exit(1);
}

/* Waits for room. */
static void send_message(const struct header *header, size_t length) {
    void *buffer;
    do
        buffer = network_buffer(length);
    while (!buffer);
    memset(buffer, 7, length);
    memcpy(buffer, header, sizeof *header);
    network_send(length);
}

static void serve(void) {
    uint64_t counted = 0;
    for (;;) {
        void *message;
        size_t length = network_receive(&message);
        if (!length)
            continue;
        struct header header = {0};
        if (length >= sizeof header)
            memcpy(&header, message, sizeof header);
        network_release();
        if (header.kind == COUNT) {
            counted++;
            continue;
        }
        if (header.kind == ASK) {
            header.counted = counted;
            counted = 0;
        } else if (header.kind != ECHO)
            continue;
        send_message(&header, length);
    }
}

/* The answer to a message of this kind; false: none within a time. */
static bool answer(enum kind kind, uint32_t number, uint64_t patience_ns, struct header *header) {
    for (uint64_t end = now_ns() + patience_ns;;) {
        void *message;
        size_t length = network_receive(&message);
        if (!length) {
            if (now_ns() > end)
                return false;
            continue;
        }
        if (length >= sizeof *header)
            memcpy(header, message, sizeof *header);
        else
            header->kind = 0;
        network_release();
        if (header->kind == (uint32_t)kind && header->number == number)
            return true;
    }
}

static bool round_trip(enum kind kind, uint32_t number, size_t length, struct header *header) {
    for (int tries = 0; tries < 100; tries++) {
        struct header sent = {.kind = kind, .number = number};
        send_message(&sent, length);
        if (answer(kind, number, 100000000, header))
            return true;
    }
    return false;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void ping(uint32_t count, size_t length) {
    uint64_t *took = calloc(count, sizeof *took);
    struct header header;
    if (!took || !round_trip(ECHO, UINT32_MAX, length, &header))
        fail("reach the server");
    for (uint32_t i = 0; i < count; i++) {
        uint64_t sent = now_ns();
        if (!round_trip(ECHO, i, length, &header))
            fail("reach the server any more");
        took[i] = now_ns() - sent;
    }
    qsort(took, count, sizeof *took, ascending);
    printf("round_trips %u min_ns %llu median_ns %llu p99_ns %llu\n", count, (unsigned long long)took[0],
           (unsigned long long)took[count / 2], (unsigned long long)took[(uint64_t)count * 99 / 100]);
}

static void stream(uint32_t count, size_t length) {
    struct header header;
    if (!round_trip(ASK, 0, sizeof header, &header))
        fail("reach the server");
    uint64_t begun = now_ns(), ended = begun;
    for (uint32_t i = 0; i < count; i++) {
        struct header sent = {.kind = COUNT, .number = i};
        send_message(&sent, length);
    }
    /* Messages may still come after it has been asked for the first time. */
    uint64_t counted = 0;
    for (uint32_t asked = 1; asked < 1000; asked++) {
        if (!round_trip(ASK, asked, sizeof header, &header))
            fail("reach the server any more");
        if (!header.counted && counted)
            break;
        ended = header.counted ? now_ns() : ended;
        counted += header.counted;
    }
    printf("sent %u arrived %llu per_second %.0f\n", count, (unsigned long long)counted,
           counted * 1e9 / (ended - begun + 1));
}

int main(int count, char **arguments) {
    bool server = count > 1 && !strcmp(arguments[1], "serve");
    if (!server && count < 4) {
        fprintf(stderr, "usage: %s serve ARGUMENTS... | ping|stream COUNT LENGTH ARGUMENTS...\n", arguments[0]);
        return 2;
    }
    network_open(server, arguments + (server ? 2 : 4));
    if (server) {
        printf("ready\n");
        fflush(stdout);
        serve();
    }
    uint32_t messages = strtoul(arguments[2], NULL, 10);
    size_t length = strtoul(arguments[3], NULL, 10);
    if (!messages || length < sizeof(struct header))
        fail("send no messages, or shorter ones than their header (16 bytes)");
    (strcmp(arguments[1], "ping") ? stream : ping)(messages, length);
    return 0;
}

#endif
