/* A runtime inside the process: only where it is allowed, and gone with the session. */

#include <dirent.h>
#include <unistd.h>

#include "check.h"

/* Threads of this process. */
static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = -2; /* . and .. */
    CHECK(tasks != NULL);
    while (readdir(tasks) != NULL) {
        count++;
    }
    closedir(tasks);
    return count;
}

int main(int argc, char **argv) {
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    takt_session *session;
    takt_stream *stream;
    takt_source *source;
    takt_sink *sink;
    takt_buffer buffer;
    CHECK(argc == 2);
    CHECK(takt_session_open(&options, &session) == TAKT_E_NO_RUNTIME);
    options.allow_embedded = 1;
    if (strcmp(argv[1], "fails") == 0) {
        CHECK(takt_session_open(&options, &session) == TAKT_E_SYSTEM);
        printf("%s\n", takt_last_error());
        return 0;
    }
    for (int round = 0; round < 3; round++) {
        CHECK(takt_session_open(&options, &session) == 0);
        CHECK(takt_stream_open(session, NULL, &stream) == 0);
        CHECK(takt_source_open(stream, 5, 0, &source) == 0);
        CHECK(takt_sink_open(stream, 5, NULL, NULL, &sink) == 0);
        CHECK(threads() > 1);
        for (int i = 0; i < 1000; i++) {
            CHECK(takt_buffer_get(source, sizeof i, LONG_TIME, &buffer) == 0);
            memcpy(buffer.data, &i, sizeof i);
            CHECK(takt_emit(source, &buffer, NULL) == 0);
            CHECK(takt_consume(sink, LONG_TIME, &buffer) == 0);
            CHECK(memcmp(buffer.data, &i, sizeof i) == 0);
            CHECK(takt_release(sink, &buffer) == 0);
        }
        takt_sink_close(sink);
        takt_source_close(source);
        takt_stream_close(stream);
        takt_session_close(session);
        /* A thread that only releases things may end a moment later. */
        for (int waited = 0; threads() != 1; waited++) {
            CHECK(waited < 60000);
            usleep(1000);
        }
    }
    return 0;
}
