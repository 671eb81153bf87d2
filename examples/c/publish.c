/* Publishes a temperature on channel 7, ten times a second, until it is stopped. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include <takt.h>

int main(void) {
    takt_session *session;
    takt_stream *stream;
    takt_source *source;
    takt_buffer buffer;
    if (takt_session_open(NULL, &session) < 0 || takt_stream_open(session, NULL, &stream) < 0 ||
        takt_source_open(stream, 7, 0, &source) < 0) {
        fprintf(stderr, "publish: %s\n", takt_last_error());
        return 1;
    }
    for (int i = 0;; i++, usleep(100000)) {
        if (takt_buffer_get(source, sizeof(double), TAKT_FOREVER, &buffer) == 0) {
            *(double *)buffer.data = 20 + 5 * sin(i / 50.0);
            takt_emit(source, &buffer, NULL);
        }
    }
}
