/* A program as the thesis describes it, section 6.3.4: publish with a function that fills, subscribe with one that
 * receives. */
#include <semaphore.h>
#include <stdio.h>

#include "check.h"
#include "lunar.h"

#define MESSAGES 10

static int filled, received;
static sem_t all;

static void fill(lunar_message *message) {
    CHECK(message->length == lunar_most && strcmp(message->topic, "lunar/test") == 0);
    message->length = (size_t)snprintf((char *)message->data, message->length, "x=%d", filled++);
}

static void receive(const lunar_message *message) {
    char expected[16];
    int length = snprintf(expected, sizeof expected, "x=%d", received++);
    CHECK(strcmp(message->topic, "lunar/test") == 0);
    CHECK(message->length == (size_t)length && memcmp(message->data, expected, message->length) == 0);
    if (received == MESSAGES) {
        sem_post(&all);
    }
}

int main(void) {
    static takt_qos qos = TAKT_QOS_INIT;
    int i;
    qos.reliability = TAKT_RELIABLE;
    lunar_qos = &qos;
    CHECK(sem_init(&all, 0, 0) == 0);
    CHECK(lunar_close() == TAKT_E_CLOSED);
    CHECK(lunar_subscribe("no//topic", receive) == TAKT_E_INVALID_ARGUMENT);
    CHECK(lunar_publish("a/*", fill) == TAKT_E_INVALID_ARGUMENT && filled == 0);
    CHECK(lunar_subscribe("lunar/test", receive) == 0);
    for (i = 0; i < MESSAGES; i++) {
        CHECK(lunar_publish("lunar/test", fill) == i && filled == i + 1);
    }
    CHECK(sem_wait(&all) == 0);
    CHECK(lunar_close() == 0);
    printf("received %d messages\n", received);
    return 0;
}
