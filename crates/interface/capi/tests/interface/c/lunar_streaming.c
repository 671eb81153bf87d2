/* A program written from section 6.3.4 of the thesis: a server with its two methods, and a client, in one process. */
#include <lunar.h>
#include <pthread.h>
#include <stdio.h>

enum { FRAMES = 10, BYTES = 100000 };

static unsigned char picture[BYTES];
static int made;

static int get_frame(void *user, lnr_s_frame *frame) {
    (void)user;
    memset(picture, made, sizeof picture);
    frame->data = picture;
    frame->length = (size_t)(BYTES - made);
    ++made;
    return 0;
}

static int wait_next(void *user) {
    (void)user;
    return made == FRAMES;
}

/* Its second frame has no bytes. */
static int get_broken(void *user, lnr_s_frame *frame) {
    int *frames = (int *)user;
    frame->data = picture;
    frame->length = *frames == 0;
    ++*frames;
    return 0;
}

static int go_on(void *user) {
    (void)user;
    return 0;
}

static void *watch(void *of) {
    lnr_s_client *client = (lnr_s_client *)of;
    lnr_s_frame frame;
    size_t right = 0, at;
    while (lnr_s_receive(client, &frame) == 0) {
        for (at = 0; at < frame.length && ((const unsigned char *)frame.data)[at] == right; ++at) {
        }
        right += at == BYTES - right;
    }
    return (void *)right;
}

int main(void) {
    takt_qos qos = TAKT_QOS_INIT;
    lnr_s_server server;
    lnr_s_client client;
    pthread_t thread;
    void *right;
    qos.reliability = TAKT_RELIABLE;
    lunar_qos = &qos;
    lnr_s_all = 1;
    if (lnr_s_connect(&client, "lunar/video") < 0 ||
        lnr_s_open_server(&server, "lunar/video", get_frame, wait_next, NULL) < 0 || lnr_s_wait_client(&server) < 0 ||
        pthread_create(&thread, NULL, watch, &client) != 0 || lnr_s_loop(&server) != FRAMES) {
        fprintf(stderr, "lunar: %s\n", takt_last_error());
        return 1;
    }
    lnr_s_close_server(&server);
    pthread_join(thread, &right);
    printf("received %d frames\n", (int)(size_t)right);
    lnr_s_close_client(&client);
    made = 0;
    if (lnr_s_open_server(&server, "lunar/broken", get_broken, go_on, &made) < 0 || lnr_s_loop(&server) >= 0 ||
        server.sent != 1) {
        fprintf(stderr, "lunar: a frame without bytes after %d: %s\n", server.sent, takt_last_error());
        return 1;
    }
    lnr_s_close_server(&server);
    /* What could not be opened can be closed. */
    memset(&server, 0xff, sizeof server);
    memset(&client, 0xff, sizeof client);
    if (lnr_s_open_server(&server, "", get_broken, go_on, &made) >= 0 || lnr_s_loop(&server) != TAKT_E_CLOSED ||
        lnr_s_connect(&client, "") >= 0) {
        fprintf(stderr, "lunar: a stream without a name\n");
        return 1;
    }
    lnr_s_close_server(&server);
    lnr_s_close_client(&client);
    return lunar_close() < 0;
}
