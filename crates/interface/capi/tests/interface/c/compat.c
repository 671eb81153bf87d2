/* The names of the public INSANE programs, as those of each generation are written: one process echoes, another asks. Compiled with each
 * INSANE_COMPAT. */

#include <sys/wait.h>
#include <unistd.h>

#include "insane.h"

#define MESSAGES 100
#if INSANE_COMPAT == 0
#define STREAM(stream) (&(stream))
#define GET(source, size) nsn_get_buffer(source, size, 0)
#define OPTIONS(options) (&(options))
#else
#define STREAM(stream) (stream)
#define GET(source, size) nsn_get_buffer(size, NSN_BLOCKING)
#define OPTIONS(options) (options)
#endif
#if INSANE_COMPAT == 2
typedef nsn_buffer_t *buffer;
#define B(b) (b)
#else
typedef nsn_buffer_t buffer;
#define B(b) (&(b))
#endif
#if INSANE_COMPAT == 1
#define ARGUMENT(b) (b)
#else
#define ARGUMENT(b) B(b)
#endif
#if INSANE_COMPAT == 0
#define RELEASE(sink, b) nsn_release_data(sink, &(b))
#else
#define RELEASE(sink, b) nsn_release_data(b)
#endif

static int fail(int line) {
    fprintf(stderr, "%s:%d: %s\n", __FILE__, line, takt_last_error());
    return 1;
}
#define CHECK(condition)                                                                        \
    if (!(condition))                                                                           \
    return fail(__LINE__)

static int pong(int told) {
    CHECK(nsn_init() == 0);
    nsn_options_t options = {NSN_QOS_DATAPATH_DEFAULT, NSN_QOS_CONSUMPTION_LOW, NSN_QOS_DETERMINISM_DEFAULT, 0};
    nsn_stream_t stream = nsn_create_stream(OPTIONS(options));
    CHECK(stream != NSN_INVALID_STREAM_HANDLE);
    nsn_sink_t sink = nsn_create_sink(STREAM(stream), 30, NULL);
    nsn_source_t source = nsn_create_source(STREAM(stream), 31);
    CHECK(sink != NSN_INVALID_SNK && source != NSN_INVALID_SRC && write(told, "x", 1) == 1);
    for (int i = 0; i < MESSAGES; i++) {
        buffer received = nsn_consume_data(sink, NSN_BLOCKING);
        CHECK(nsn_buffer_is_valid(B(received)));
        if (i % 2 == 0) {
            /* The very buffer. */
            CHECK(nsn_emit_data(source, ARGUMENT(received)) >= 0);
        } else {
            buffer sent = GET(source, 0);
            CHECK(nsn_buffer_is_valid(B(sent)) && B(sent)->len >= 1024);
            memcpy(B(sent)->data, B(received)->data, B(received)->len);
            B(sent)->len = B(received)->len;
            CHECK(nsn_emit_data(source, ARGUMENT(sent)) >= 0);
            RELEASE(sink, received);
        }
    }
    return nsn_close();
}

static int ping(void) {
    CHECK(nsn_init() == 0);
    nsn_options_t options = {NSN_QOS_DATAPATH_DEFAULT, NSN_QOS_CONSUMPTION_LOW, NSN_QOS_DETERMINISM_DEFAULT, 0};
    options.reliability = 2;
    CHECK(nsn_create_stream(OPTIONS(options)) == NSN_INVALID_STREAM_HANDLE);
    options.reliability = NSN_QOS_RELIABILITY_RELIABLE;
    nsn_stream_t stream = nsn_create_stream(OPTIONS(options));
    nsn_sink_t sink = nsn_create_sink(STREAM(stream), 31, NULL), own = nsn_create_sink(STREAM(stream), 30, NULL);
    nsn_source_t source = nsn_create_source(STREAM(stream), 30);
    CHECK(sink != NULL && own != NULL && source != NULL);
    for (int i = 0; i < MESSAGES; i++) {
        buffer sent = GET(source, 64);
        CHECK(nsn_buffer_is_valid(B(sent)));
        memcpy(B(sent)->data, &i, sizeof i);
        B(sent)->len = sizeof i;
        int id = nsn_emit_data(source, ARGUMENT(sent));
        CHECK(id == i);
        CHECK(nsn_data_available(sink, NSN_BLOCKING) == 1);
        buffer received = nsn_consume_data(sink, NSN_BLOCKING);
        CHECK(B(received)->len == sizeof i && memcmp(B(received)->data, &i, sizeof i) == 0);
        RELEASE(sink, received);
        while (nsn_check_emit_outcome(source, id) == TAKT_PENDING) {
        }
        CHECK(nsn_check_emit_outcome(source, id) == TAKT_SENT);
    }
    /* It does not hear itself. */
    buffer none = nsn_consume_data(own, NSN_NONBLOCKING);
    CHECK(!nsn_buffer_is_valid(B(none)) && B(none)->len == 0);
    nsn_destroy_sink(own);
    nsn_destroy_sink(sink);
    nsn_destroy_source(source);
    nsn_destroy_stream(STREAM(stream));
    return nsn_close();
}

int main(void) {
    int told[2], status;
    char byte;
    pid_t child;
    CHECK(pipe(told) == 0 && (child = fork()) >= 0);
    if (child == 0) {
        return pong(told[1]);
    }
    CHECK(read(told[0], &byte, 1) == 1);
    status = ping();
    if (status != 0) {
        return status;
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}
