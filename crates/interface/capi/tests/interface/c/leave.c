/* Emits numbered messages, and ends in the way that it is told. */

#include <signal.h>
#include <unistd.h>
#ifdef __cplusplus
#include <exception>
#endif

#include "check.h"

#define MESSAGES 1000

int main(int argc, char **argv) {
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    takt_session *session;
    takt_stream *stream;
    takt_source *source;
    takt_buffer buffer;
    const char *how, *channel = getenv("TAKT_TEST_CHANNEL");
    CHECK(argc == 2);
    how = argv[1];
    options.allow_embedded = strncmp(how, "embedded ", 9) == 0;
    if (options.allow_embedded) {
        how += 9;
    }
    CHECK(takt_session_open(&options, &session) == 0);
    CHECK(takt_stream_open(session, NULL, &stream) == 0);
    CHECK(takt_source_open(stream, channel != NULL ? strtoul(channel, NULL, 10) : 5, 0, &source) == 0);
    /* An embedded runtime meets its peers first: a message that nobody hears does not count. */
    while (options.allow_embedded) {
        int64_t token;
        int outcome;
        CHECK(takt_buffer_get(source, 0, LONG_TIME, &buffer) == 0);
        CHECK(takt_emit(source, &buffer, &token) == 0);
        while ((outcome = takt_emit_outcome(source, token)) == TAKT_PENDING) {
        }
        if (outcome == TAKT_SENT) {
            break;
        }
    }
    for (int i = 0; i < MESSAGES; i++) {
        CHECK(takt_buffer_get(source, sizeof i, LONG_TIME, &buffer) == 0);
        memcpy(buffer.data, &i, sizeof i);
        /* The runtime is not even told of them. */
        CHECK(takt_emit_more(source, &buffer, NULL) == 0);
    }
    if (strcmp(how, "return") == 0) {
        return 0;
    } else if (strcmp(how, "exit") == 0) {
        exit(0);
    } else if (strcmp(how, "_exit") == 0) {
        _exit(0);
    } else if (strcmp(how, "abort") == 0) {
        abort();
    } else if (strcmp(how, "terminate") == 0) {
        raise(SIGTERM);
    } else if (strcmp(how, "kill") == 0) {
        raise(SIGKILL);
    } else if (strcmp(how, "fault") == 0) {
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
    } else if (strcmp(how, "session") == 0) {
        takt_session_close(session);
        return 0;
    } else if (strcmp(how, "all") == 0) {
        takt_source_close(source);
        takt_stream_close(stream);
        takt_session_close(session);
        return 0;
#ifdef __cplusplus
    } else if (strcmp(how, "exception") == 0) {
        throw 1;
    } else if (strcmp(how, "std::terminate") == 0) {
        std::terminate();
#endif
    }
    CHECK(!"a known way to end");
}
