/* A program written from figure 6.7 alone, with the names and signatures that stand there. */

#include <stdio.h>
#include <string.h>

#include "insane.h"

#define CHANNEL 7

/* In the other file. */
extern stream_t other_file_stream(void);

static int by_callback;

static void on_data(buffer_t buffer) {
    if (buffer.length == 5 && memcmp(buffer.data, "hello", 5) == 0) {
        __atomic_add_fetch(&by_callback, 1, __ATOMIC_RELEASE);
    }
}

int main(void) {
    if (init_session() < 0) {
        fprintf(stderr, "%s\n", takt_last_error());
        return 1;
    }
    stream_t stream = other_file_stream();
    sink_t sink = create_sink(stream, CHANNEL, NULL);
    sink_t called = create_sink(stream, CHANNEL, on_data);
    source_t source = create_source(stream, CHANNEL);
    if (stream == NULL || sink == NULL || called == NULL || source == NULL) {
        fprintf(stderr, "%s\n", takt_last_error());
        return 1;
    }
    if (consume_data(sink, INSANE_NONBLOCKING).data != NULL) {
        return 2;
    }
    int received = 0;
    for (int i = 0; i < 10; i++) {
        buffer_t buffer = get_buffer(source, 5, INSANE_BLOCKING);
        memcpy(buffer.data, "hello", 5);
        int id = emit_data(source, buffer);
        if (id != i) {
            return 3;
        }
        while (data_available(sink, INSANE_NONBLOCKING) == 0) {
        }
        buffer_t message = consume_data(sink, INSANE_BLOCKING);
        received += message.length == 5 && memcmp(message.data, "hello", 5) == 0;
        release_buffer(sink, message);
        while (check_emit_outcome(source, id) == TAKT_PENDING) {
        }
        if (check_emit_outcome(source, id) != TAKT_SENT) {
            return 4;
        }
        while (__atomic_load_n(&by_callback, __ATOMIC_ACQUIRE) <= i) {
        }
    }
    /* Deeper than usual, by an option. */
    for (int i = 0; i < 2000; i++) {
        if (emit_data(source, get_buffer(source, 0, INSANE_NONBLOCKING)) != i + 10) {
            return 5;
        }
    }
    for (int i = 0; i < 2000; i++) {
        if (data_available(sink, INSANE_BLOCKING) < 1) {
            return 6;
        }
        release_buffer(sink, consume_data(sink, INSANE_NONBLOCKING));
    }
    /* What was received goes on. */
    buffer_t buffer = get_buffer(source, 100, INSANE_BLOCKING);
    memcpy(buffer.data, "on", 2);
    buffer.length = 2;
    if (emit_data(source, buffer) != 2010 ||
        emit_data(source, consume_data(sink, INSANE_BLOCKING)) != 2011) {
        return 7;
    }
    buffer = consume_data(sink, INSANE_BLOCKING);
    if (buffer.length != 2 || memcmp(buffer.data, "on", 2) != 0) {
        return 8;
    }
    buffer_t none = consume_data(sink, INSANE_NONBLOCKING);
    if (emit_data(source, none) >= 0 || check_emit_outcome(source, -3) >= 0) {
        return 9;
    }
    if (close_session() != 0 || close_session() != TAKT_E_CLOSED) {
        return 10;
    }
    /* Nothing more is taken. */
    if (get_buffer(source, 5, INSANE_BLOCKING).data != NULL ||
        emit_data(source, buffer) != TAKT_E_CLOSED ||
        consume_data(sink, INSANE_BLOCKING).data != NULL ||
        data_available(sink, INSANE_BLOCKING) != TAKT_E_CLOSED || create_source(stream, 1) != NULL) {
        return 11;
    }
    close_source(source);
    close_sink(called);
    close_sink(sink);
    close_stream(stream);
    printf("received %d messages, %d by callback\n", received, by_callback);
    return 0;
}
