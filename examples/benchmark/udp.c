/* Over sockets of the kernel: `udp serve ADDRESS PORT`, `udp ping COUNT LENGTH ADDRESS PORT`. */
#include <arpa/inet.h>
#include <errno.h>
#include <sys/socket.h>

#include "benchmark.h"

static int endpoint;
static struct sockaddr_in other;
static char outgoing[65536], incoming[65536];

static void network_open(bool server, char **arguments) {
    if (!arguments[0] || !arguments[1])
        fail("do without an address and a port");
    other = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(arguments[1]))};
    if (inet_pton(AF_INET, arguments[0], &other.sin_addr) != 1)
        fail("read the address");
    endpoint = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (endpoint < 0)
        fail("open a socket");
    int room = 8 << 20;
    setsockopt(endpoint, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    if (server && bind(endpoint, (struct sockaddr *)&other, sizeof other) < 0)
        fail("bind to the address");
}

static void *network_buffer(size_t length) {
    return length <= sizeof outgoing ? outgoing : NULL;
}

static void network_send(size_t length) {
    while (sendto(endpoint, outgoing, length, 0, (struct sockaddr *)&other, sizeof other) < 0)
        if (errno != EAGAIN && errno != ENOBUFS && errno != ECONNREFUSED)
            fail("send");
}

static size_t network_receive(void **message) {
    socklen_t size = sizeof other;
    ssize_t length = recvfrom(endpoint, incoming, sizeof incoming, 0, (struct sockaddr *)&other, &size);
    *message = incoming;
    return length > 0 ? length : 0;
}

static void network_release(void) {}
