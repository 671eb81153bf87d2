/*
 * lunar.h: the messaging and the streaming of Lunar under their own names (naaas-thesis-2024, section 6.3.4), over takt.h.
 *
 * For programs that were written from the thesis. New programs use the topics and streams of takt.h, which tell more: why
 * something failed, how long to wait, who is there.
 *
 * The thesis names two functions of messaging; what it leaves open is settled here:
 * - lunar_publish() calls `fill` once, with memory for message->length bytes (lunar_most) in the memory that is sent from;
 *   `fill` sets message->length to what it wrote, or to 0 for an empty message. The first publication of a topic opens
 *   its publisher. It waits for memory, and returns the id of the message, 0 or more, or a negative TAKT_E_ code; then
 *   takt_last_error() says why, and `fill` was not called.
 * - lunar_subscribe() returns at once. `receive` is called with every message, on a thread of its own for each call of
 *   lunar_subscribe(); the message is valid during the call. The topic may be a pattern (takt.h).
 * - lunar_qos, if it is set before the first call for a topic, says how messages are carried and delivered.
 * - lunar_close() sends what was published and ends everything. A program that ends without loses nothing either, see takt.h.
 *
 * And of streaming:
 * - lnr_s_open_server() opens a stream. `get_frame` sets frame->data and frame->length, which stay until it is called again,
 *   and returns 0; another number ends the stream. `wait_next` pauses until the next frame is due; it returns 0, or another
 *   number to end the stream. Frames are bytes of any length, from one to 4 GiB.
 * - lnr_s_loop() gets a frame, sends it in fragments, waits for the next, until the end of the stream; it waits for memory.
 *   It returns how many frames were sent, or a negative TAKT_E_ code; server->sent says how many in any case. Without clients
 *   frames go nowhere: lnr_s_wait_client() waits for one.
 * - lnr_s_connect() asks for a stream. lnr_s_receive() waits for its next frame, which is whole, and valid until the client's
 *   next call: 0, or 1 when the stream has ended, or a negative code. A client that is slow gets the latest frame;
 *   with lnr_s_all set to 1 it gets all, and a reliable server waits for it.
 * - lunar_qos says how frames are carried and delivered, too. Servers and clients are closed before lunar_close().
 *
 * If no runtime answers on this node, one runs inside the process. All files of a program that include this header share the
 * session. One thread at a time publishes, subscribes and closes. For GCC and Clang, C11 or C++; link with -ltakt.
 */
#ifndef LUNAR_H
#define LUNAR_H

#include <stdlib.h>
#include <string.h>

#include "takt.h"

typedef struct lunar_message {
    void *data; /* to be read only in `receive` */
    size_t length;
    const char *topic;
} lunar_message;

typedef void (*lunar_fill)(lunar_message *message);
typedef void (*lunar_receive)(const lunar_message *message);

struct lunar_publisher {
    struct lunar_publisher *next;
    takt_publisher *publisher;
    char *topic;
};

struct lunar_subscriber {
    struct lunar_subscriber *next;
    takt_subscriber *subscriber;
    lunar_receive receive;
};

struct lunar_publication {
    lunar_fill fill;
    const char *topic;
};

/* How messages are carried and delivered; NULL: TAKT_QOS_INIT. */
__attribute__((weak)) const takt_qos *lunar_qos = NULL;
/* Most bytes of a message that is published. */
__attribute__((weak)) size_t lunar_most = 65536;

__attribute__((weak)) takt_session *lunar_session = NULL;
__attribute__((weak)) takt_participant *lunar_participant = NULL;
__attribute__((weak)) struct lunar_publisher *lunar_publishers = NULL;
__attribute__((weak)) struct lunar_subscriber *lunar_subscribers = NULL;

static inline int lunar_open(void) {
    takt_session_options options = TAKT_SESSION_OPTIONS_INIT;
    int code;
    if (lunar_participant != NULL) {
        return 0;
    }
    options.allow_embedded = 1;
    if (lunar_session == NULL && (code = takt_session_open(&options, &lunar_session)) < 0) {
        return code;
    }
    return takt_participant_open(lunar_session, NULL, &lunar_participant);
}

static inline size_t lunar_write(void *user, void *memory, size_t most) {
    struct lunar_publication *publication = (struct lunar_publication *)user;
    lunar_message message = {memory, most, publication->topic};
    publication->fill(&message);
    return message.length;
}

static inline int lunar_publish(const char *topic, lunar_fill fill) {
    takt_publisher_options options = TAKT_PUBLISHER_OPTIONS_INIT;
    struct lunar_publication publication = {fill, topic};
    struct lunar_publisher *of = lunar_publishers;
    int64_t token;
    int code = lunar_open();
    if (code < 0) {
        return code;
    }
    if (topic == NULL || fill == NULL) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    while (of != NULL && strcmp(of->topic, topic) != 0) {
        of = of->next;
    }
    if (of == NULL) {
        of = (struct lunar_publisher *)calloc(1, sizeof *of);
        if (of == NULL || (of->topic = strdup(topic)) == NULL) {
            free(of);
            return TAKT_E_NO_MEMORY;
        }
        options.qos = lunar_qos;
        if ((code = takt_publisher_open(lunar_participant, topic, &options, &of->publisher)) < 0) {
            free(of->topic);
            free(of);
            return code;
        }
        of->next = lunar_publishers;
        lunar_publishers = of;
    }
    code = takt_publish_fill(of->publisher, lunar_most, TAKT_FOREVER, lunar_write, &publication, &token);
    return code < 0 ? code : (int)(token & 0x7fffffff);
}

static inline void lunar_called(void *user, const takt_sample *sample) {
    lunar_message message = {(void *)sample->data, sample->length, sample->topic};
    ((struct lunar_subscriber *)user)->receive(&message);
}

static inline int lunar_subscribe(const char *topic, lunar_receive receive) {
    takt_subscriber_options options = TAKT_SUBSCRIBER_OPTIONS_INIT;
    struct lunar_subscriber *of;
    int code = lunar_open();
    if (code < 0) {
        return code;
    }
    if (topic == NULL || receive == NULL) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    of = (struct lunar_subscriber *)calloc(1, sizeof *of);
    if (of == NULL) {
        return TAKT_E_NO_MEMORY;
    }
    of->receive = receive;
    options.qos = lunar_qos;
    options.callback = lunar_called;
    options.user = of;
    if ((code = takt_subscriber_open(lunar_participant, topic, &options, &of->subscriber)) < 0) {
        free(of);
        return code;
    }
    of->next = lunar_subscribers;
    lunar_subscribers = of;
    return 0;
}

typedef struct lnr_s_frame {
    const void *data;
    size_t length;
} lnr_s_frame;

typedef int (*lnr_s_get_frame)(void *user, lnr_s_frame *frame);
typedef int (*lnr_s_wait_next)(void *user);

typedef struct lnr_s_server {
    takt_video_server *server;
    lnr_s_get_frame get_frame;
    lnr_s_wait_next wait_next;
    void *user;
    int sent; /* frames */
} lnr_s_server;

typedef struct lnr_s_client {
    takt_video_client *client;
    takt_video_frame frame;
} lnr_s_client;

/* Whether clients get all frames, or the latest one while they are busy. */
__attribute__((weak)) int lnr_s_all = 0;

static inline takt_video_format lnr_s_format(size_t length) {
    takt_video_format format = {TAKT_PIXELS_BYTES, 0, 1};
    format.width = length > UINT32_MAX ? 0 : (uint32_t)length;
    return format;
}

static inline int lnr_s_open_server(lnr_s_server *server, const char *stream, lnr_s_get_frame get_frame,
                                    lnr_s_wait_next wait_next, void *user) {
    takt_video_server_options options = TAKT_VIDEO_SERVER_OPTIONS_INIT;
    takt_video_format format = lnr_s_format(1); /* until there is a frame */
    int code;
    if (server == NULL) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    /* Whatever fails below: it may be closed. */
    memset(server, 0, sizeof *server);
    if ((code = lunar_open()) < 0) {
        return code;
    }
    if (get_frame == NULL || wait_next == NULL) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    server->get_frame = get_frame;
    server->wait_next = wait_next;
    server->user = user;
    options.qos = lunar_qos;
    options.depth = 1024; /* two frames of any length that is spread; nobody knows yet how long they are */
    return takt_video_server_open(lunar_participant, stream, &format, &options, &server->server);
}

static inline int lnr_s_wait_client(lnr_s_server *server) {
    return takt_video_server_wait_client(server->server, TAKT_FOREVER);
}

static inline int lnr_s_loop(lnr_s_server *server) {
    server->sent = 0;
    if (server->server == NULL) {
        return TAKT_E_CLOSED;
    }
    do {
        lnr_s_frame frame = {NULL, 0};
        takt_video_format format;
        int code;
        if (server->get_frame(server->user, &frame) != 0) {
            break;
        }
        format = lnr_s_format(frame.length);
        if ((code = takt_video_server_set_format(server->server, &format)) < 0 ||
            (code = takt_video_send(server->server, frame.data, frame.length, 0, TAKT_FOREVER, NULL)) < 0) {
            return code;
        }
        ++server->sent;
    } while (server->wait_next(server->user) == 0);
    return server->sent;
}

static inline void lnr_s_close_server(lnr_s_server *server) {
    takt_video_server_close(server->server);
    server->server = NULL;
}

static inline int lnr_s_connect(lnr_s_client *client, const char *stream) {
    takt_video_client_options options = TAKT_VIDEO_CLIENT_OPTIONS_INIT;
    int code;
    if (client == NULL) {
        return TAKT_E_INVALID_ARGUMENT;
    }
    memset(client, 0, sizeof *client);
    if ((code = lunar_open()) < 0) {
        return code;
    }
    options.qos = lunar_qos;
    options.all = lnr_s_all;
    return takt_video_client_open(lunar_participant, stream, &options, &client->client);
}

static inline int lnr_s_receive(lnr_s_client *client, lnr_s_frame *frame) {
    int code;
    if (client->frame.data != NULL) {
        takt_video_frame_release(client->client, &client->frame);
    }
    if ((code = takt_video_next(client->client, TAKT_FOREVER, &client->frame)) == 0) {
        frame->data = client->frame.data;
        frame->length = client->frame.length;
    }
    return code;
}

static inline void lnr_s_close_client(lnr_s_client *client) {
    takt_video_client_close(client->client);
    memset(client, 0, sizeof *client);
}

static inline int lunar_close(void) {
    int code;
    if (lunar_session == NULL) {
        return TAKT_E_CLOSED;
    }
    while (lunar_subscribers != NULL) {
        struct lunar_subscriber *of = lunar_subscribers;
        lunar_subscribers = of->next;
        takt_subscriber_close(of->subscriber);
        free(of);
    }
    while (lunar_publishers != NULL) {
        struct lunar_publisher *of = lunar_publishers;
        lunar_publishers = of->next;
        takt_publisher_close(of->publisher);
        free(of->topic);
        free(of);
    }
    takt_participant_close(lunar_participant);
    lunar_participant = NULL;
    code = takt_session_end(lunar_session);
    takt_session_close(lunar_session);
    lunar_session = NULL;
    return code;
}

#endif /* LUNAR_H */
