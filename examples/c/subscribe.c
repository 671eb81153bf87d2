/* Prints the temperatures on channel 7 with the time each has taken; `subscribe N` stops after N. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <takt.h>

int main(int argc, char **argv) {
    takt_session *session;
    takt_stream *stream;
    takt_sink *sink;
    takt_buffer message;
    takt_message_info info = TAKT_MESSAGE_INFO_INIT;
    if (takt_session_open(NULL, &session) < 0 || takt_stream_open(session, NULL, &stream) < 0 ||
        takt_sink_open(stream, 7, NULL, NULL, &sink) < 0) {
        fprintf(stderr, "subscribe: %s\n", takt_last_error());
        return 1;
    }
    for (int left = argc > 1 ? atoi(argv[1]) : -1; left != 0;) {
        struct timespec now;
        if (takt_consume(sink, TAKT_FOREVER, &message) < 0) {
            fprintf(stderr, "subscribe: %s\n", takt_last_error());
            continue;
        }
        clock_gettime(CLOCK_TAI, &now);
        takt_message_information(sink, &message, &info);
        printf("%.2f degrees, %lld ns old\n", *(double *)message.data,
               (long long)(now.tv_sec * 1000000000LL + now.tv_nsec - info.send_time_ns));
        takt_release(sink, &message);
        left -= left > 0;
    }
    return 0;
}
