/* Over Takt: `takt serve SOCKET [DATAPATH]`, `takt ping COUNT LENGTH SOCKET [DATAPATH]`; DATAPATH: udp, xdp, dpdk, fabric. */
#include <takt.h>

#include "benchmark.h"

static takt_source *source;
static takt_sink *sink;
static takt_buffer outgoing, incoming;

static void network_open(bool server, char **arguments) {
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    takt_session *session;
    takt_qos qos = TAKT_QOS_INIT;
    takt_stream *stream;
    options.socket = arguments[0];
    qos.resource_use = TAKT_UNLIMITED;
    qos.datapath = arguments[0] ? arguments[1] : NULL;
    if (takt_session_open(&options, &session) || takt_stream_open(session, &qos, &stream) ||
        takt_source_open(stream, server ? 2 : 1, 0, &source) || takt_sink_open(stream, server ? 1 : 2, NULL, NULL, &sink))
        fail(takt_last_error());
    if (!server && takt_source_wait_reader(source, 10000000000) < 0)
        fail(takt_last_error());
}

static void *network_buffer(size_t length) {
    int error = takt_buffer_get(source, length, TAKT_NOWAIT, &outgoing);
    if (error && error != TAKT_E_WOULD_BLOCK)
        fail(takt_last_error());
    return error ? NULL : outgoing.data;
}

static void network_send(size_t length) {
    outgoing.length = length;
    takt_emit(source, &outgoing, NULL);
}

static size_t network_receive(void **message) {
    /* It lends its core to the runtime before it sleeps. */
    if (takt_consume(sink, 1000000, &incoming))
        return 0;
    *message = incoming.data;
    return incoming.length;
}

static void network_release(void) {
    takt_release(sink, &incoming);
}
