/*
 * A datapath in C: UDP sockets of the kernel that lose, delay, reorder and duplicate what they send, as the configuration says.
 * It shows how a plugin is written, and tests what stands above datapaths.
 *
 *     cc -O2 -shared -fPIC -I include examples/datapath-lossy/lossy.c -o libtakt_datapath_lossy.so
 *
 *     [node]
 *     plugins = "/path/of/its/directory"
 *     [datapath.lossy]
 *     loss = 1            # percent of datagrams that are not sent
 *     duplicate = 0.5     # percent that are sent twice
 *     reorder = 2         # percent that are sent `delay_us` + 1 ms late, behind those after them
 *     delay_us = 100      # how long each is held back
 *     jitter_us = 20      # and up to so much longer
 *     seed = 7            # the same every time; left out: another each time
 *     fails_with = "/run/broken"  # as long as there is such a file, nothing passes
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <linux/sock_diag.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "takt_datapath.h"

enum { FRAMES = 4096, PEERS = 1024, PAYLOAD_V4 = 1472, PAYLOAD_V6 = 1452, NOBODY = -1 };

/* What was configured. Shares are in parts of a million. */
struct lossy {
    uint32_t loss, duplicate, reorder;
    uint64_t delay_ns, jitter_ns, seed;
    char fails_with[PATH_MAX]; /* "": never */
    atomic_bool failed;        /* as last looked at, for the ports */
};

struct frame {
    uint8_t payload[PAYLOAD_V4];
    size_t length;
    struct sockaddr_storage to; /* its peer may be gone by the time it is sent */
    int64_t due_ns;
    bool twice;
};

struct peer {
    bool connected;
    takt_dp_address address;
    struct sockaddr_storage to;
};

struct port {
    const struct lossy *how; /* there as long as its ports */
    uint64_t random;
    int socket, timer, epoll;
    takt_dp_address local;
    takt_dp_counters counters;
    uint32_t dropped; /* by the kernel, as it told last */
    struct peer peers[PEERS];
    struct frame frames[FRAMES];
    uint32_t free[FRAMES], free_count;
    uint32_t queue[FRAMES], queue_count;     /* committed, in order */
    uint32_t delayed[FRAMES], delayed_count; /* held back: the next one to send is the last */
};

/* Fills a failure; what a call gives then. */
static int fail(takt_dp_failure *failure, int kind, int os_error, const char *text) {
    failure->kind = kind;
    failure->os_error = os_error;
    snprintf(failure->text, sizeof(failure->text), "%s", text);
    return -1;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* xorshift64* (Vigna 2016). */
static uint64_t next_random(struct port *port) {
    port->random ^= port->random >> 12;
    port->random ^= port->random << 25;
    port->random ^= port->random >> 27;
    return port->random * 0x2545f4914f6cdd1dULL;
}

static bool happens(struct port *port, uint32_t of_a_million) {
    return of_a_million > 0 && next_random(port) % 1000000 < of_a_million;
}

static socklen_t to_kernel(const takt_dp_address *address, struct sockaddr_storage *to) {
    memset(to, 0, sizeof(*to));
    if (address->family == 4) {
        struct sockaddr_in *v4 = (struct sockaddr_in *)to;
        v4->sin_family = AF_INET;
        v4->sin_port = htons(address->port);
        memcpy(&v4->sin_addr, address->ip, 4);
        return sizeof(*v4);
    }
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address->port);
    v6->sin6_scope_id = address->scope;
    memcpy(&v6->sin6_addr, address->ip, 16);
    return sizeof(*v6);
}

static socklen_t length_of(const struct sockaddr_storage *address) {
    return address->ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static takt_dp_address from_kernel(const struct sockaddr_storage *from) {
    takt_dp_address address = {0};
    if (from->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)from;
        address.family = 4;
        address.port = ntohs(v4->sin_port);
        memcpy(address.ip, &v4->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)from;
        address.family = 6;
        address.port = ntohs(v6->sin6_port);
        address.scope = v6->sin6_scope_id;
        memcpy(address.ip, &v6->sin6_addr, 16);
    }
    return address;
}

/* The datapath. */

static int create(const takt_dp_option *options, size_t count, void **datapath, takt_dp_failure *failure) {
    struct lossy *how = calloc(1, sizeof(*how));
    if (how == NULL) {
        return fail(failure, TAKT_DP_SYSTEM, ENOMEM, "cannot remember the options");
    }
    how->seed = (uint64_t)now_ns() | 1;
    char text[200];
    for (size_t at = 0; at < count; at++) {
        const char *key = options[at].key, *value = options[at].value;
        char *end;
        if (!strcmp(key, "fails_with")) {
            if (value[0] != '/' || strlen(value) >= sizeof(how->fails_with)) {
                snprintf(text, sizeof(text), "`fails_with` is %.100s: write the whole path of a file", value);
                free(how);
                return fail(failure, TAKT_DP_UNAVAILABLE, 0, text);
            }
            strcpy(how->fails_with, value);
            continue;
        }
        double number = strtod(value, &end);
        bool share = !strcmp(key, "loss") || !strcmp(key, "duplicate") || !strcmp(key, "reorder");
        double most = share ? 100 : 1e9;
        if (end == value || *end != '\0' || !(number >= 0 && number <= most)) {
            snprintf(text, sizeof(text), "`%.40s` is %.60s: write a number from 0 to %.0f", key, value, most);
            free(how);
            return fail(failure, TAKT_DP_UNAVAILABLE, 0, text);
        }
        if (!strcmp(key, "loss")) {
            how->loss = (uint32_t)(number * 10000);
        } else if (!strcmp(key, "duplicate")) {
            how->duplicate = (uint32_t)(number * 10000);
        } else if (!strcmp(key, "reorder")) {
            how->reorder = (uint32_t)(number * 10000);
        } else if (!strcmp(key, "delay_us")) {
            how->delay_ns = (uint64_t)(number * 1000);
        } else if (!strcmp(key, "jitter_us")) {
            how->jitter_ns = (uint64_t)(number * 1000);
        } else if (!strcmp(key, "seed")) {
            how->seed = (uint64_t)number * 2 + 1; /* never 0 */
        } else {
            snprintf(text, sizeof(text),
                     "`%.40s` is no option: there are loss, duplicate, reorder, delay_us, jitter_us, seed, fails_with", key);
            free(how);
            return fail(failure, TAKT_DP_UNAVAILABLE, 0, text);
        }
    }
    *datapath = how;
    return 0;
}

static void destroy(void *datapath) { free(datapath); }

/* Looked at by the runtime now and then; the ports go by what was found last. */
static int fault(void *datapath, takt_dp_failure *failure) {
    struct lossy *how = datapath;
    bool failed = how->fails_with[0] != '\0' && access(how->fails_with, F_OK) == 0;
    atomic_store_explicit(&how->failed, failed, memory_order_relaxed);
    if (!failed) {
        return 0;
    }
    char text[400];
    snprintf(text, sizeof(text), "there is a file %.300s: remove it", how->fails_with);
    return fail(failure, TAKT_DP_UNAVAILABLE, 0, text);
}

static void capabilities(void *datapath, takt_dp_capabilities *told) {
    const struct lossy *how = datapath;
    told->flags = 0;
    snprintf(told->detail, sizeof(told->detail),
             "UDP sockets that lose %.2f %%, duplicate %.2f %%, reorder %.2f %%, delay %llu to %llu us", how->loss / 1e4,
             how->duplicate / 1e4, how->reorder / 1e4, (unsigned long long)how->delay_ns / 1000,
             (unsigned long long)(how->delay_ns + how->jitter_ns) / 1000);
}

/* Ports. */

static void close_port(void *handle) {
    struct port *port = handle;
    int descriptors[] = {port->socket, port->timer, port->epoll};
    for (int at = 0; at < 3; at++) {
        if (descriptors[at] >= 0) {
            close(descriptors[at]);
        }
    }
    free(port);
}

static bool watch(struct port *port, int descriptor) {
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(port->epoll, EPOLL_CTL_ADD, descriptor, &event) == 0;
}

static int open_port(void *datapath, const takt_dp_request *request, void **result, takt_dp_failure *failure) {
    struct port *port = calloc(1, sizeof(*port));
    if (port == NULL) {
        return fail(failure, TAKT_DP_SYSTEM, ENOMEM, "cannot make frames");
    }
    port->how = datapath;
    port->random = port->how->seed + 2u * request->lane;
    for (uint32_t at = 0; at < FRAMES; at++) {
        port->free[at] = FRAMES - 1 - at;
    }
    port->free_count = FRAMES;
    struct sockaddr_storage address;
    socklen_t length = to_kernel(&request->bind, &address);
    int type = SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, yes = 1, buffer = 4 << 20;
    port->socket = socket(address.ss_family, type, 0);
    port->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    port->epoll = epoll_create1(EPOLL_CLOEXEC);
    bool made = port->socket >= 0 && port->timer >= 0 && port->epoll >= 0 && watch(port, port->socket) &&
                watch(port, port->timer) &&
                (setsockopt(port->socket, SOL_SOCKET, SO_RCVBUFFORCE, &buffer, sizeof(buffer)) == 0 ||
                 setsockopt(port->socket, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) == 0) &&
                (address.ss_family == AF_INET ||
                 setsockopt(port->socket, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes)) == 0);
    if (!made) {
        int error = errno;
        close_port(port);
        return fail(failure, TAKT_DP_SYSTEM, error, "cannot make a UDP socket");
    }
    socklen_t told = sizeof(address);
    if (bind(port->socket, (struct sockaddr *)&address, length) != 0 ||
        getsockname(port->socket, (struct sockaddr *)&address, &told) != 0) {
        int error = errno;
        close_port(port);
        return fail(failure, TAKT_DP_BIND, error, strerror(error));
    }
    port->local = from_kernel(&address);
    *result = port;
    return 0;
}

static void local(void *handle, takt_dp_address *address) { *address = ((struct port *)handle)->local; }

/* A handle is a peer's place. */
static int connect_peer(void *handle, const takt_dp_address *remote, uint32_t *peer, takt_dp_failure *failure) {
    struct port *port = handle;
    if (remote->family != port->local.family) {
        return fail(failure, TAKT_DP_ADDRESS_FAMILY, 0, "");
    }
    int place = NOBODY;
    for (int at = PEERS - 1; at >= 0; at--) {
        if (!port->peers[at].connected) {
            place = at;
        } else if (memcmp(&port->peers[at].address, remote, sizeof(*remote)) == 0) {
            *peer = (uint32_t)at;
            return 0;
        }
    }
    if (place == NOBODY) {
        failure->limit = PEERS;
        return fail(failure, TAKT_DP_TOO_MANY_PEERS, 0, "");
    }
    struct peer *new = &port->peers[place];
    *new = (struct peer){.connected = true, .address = *remote};
    to_kernel(remote, &new->to);
    *peer = (uint32_t)place;
    return 0;
}

static struct peer *known(struct port *port, uint32_t peer) {
    return peer < PEERS && port->peers[peer].connected ? &port->peers[peer] : NULL;
}

static void disconnect(void *handle, uint32_t peer) {
    struct peer *gone = known(handle, peer);
    if (gone != NULL) {
        gone->connected = false;
    }
}

static size_t max_payload(void *handle, uint32_t peer) {
    struct port *port = handle;
    if (known(port, peer) == NULL) {
        return 0;
    }
    return port->local.family == 4 ? PAYLOAD_V4 : PAYLOAD_V6;
}

static bool has_failed(const struct port *port) {
    return atomic_load_explicit(&port->how->failed, memory_order_relaxed);
}

static int reaches(void *handle, uint32_t peer) {
    struct port *port = handle;
    return known(port, peer) != NULL && !has_failed(port);
}

static int reserve(void *handle, uint32_t peer, uint32_t *frame) {
    struct port *port = handle;
    struct peer *to = known(port, peer);
    if (to == NULL) {
        return TAKT_DP_UNKNOWN_PEER;
    }
    if (has_failed(port)) {
        return TAKT_DP_UNRESOLVED;
    }
    if (port->free_count == 0) {
        return TAKT_DP_WOULD_BLOCK;
    }
    *frame = port->free[--port->free_count];
    port->frames[*frame].to = to->to;
    return 0;
}

static uint8_t *payload(void *handle, uint32_t frame, size_t *length) {
    struct port *port = handle;
    *length = port->local.family == 4 ? PAYLOAD_V4 : PAYLOAD_V6;
    return port->frames[frame].payload;
}

static void commit(void *handle, uint32_t frame, size_t length, uint8_t traffic_class, int64_t launch_time_ns) {
    struct port *port = handle;
    (void)traffic_class;
    (void)launch_time_ns; /* the runtime waits by itself: keeps_launch_time is not there */
    port->frames[frame].length = length;
    port->frames[frame].due_ns = INT64_MIN; /* its fate is not decided yet */
    port->queue[port->queue_count++] = frame;
}

static void give_back(struct port *port, uint32_t frame) { port->free[port->free_count++] = frame; }

static void cancel(void *handle, uint32_t frame) { give_back(handle, frame); }

/* Sends a frame, and gives it back. False: the socket has no room. */
static bool transmit(struct port *port, uint32_t at) {
    struct frame *frame = &port->frames[at];
    const struct sockaddr *to = (const struct sockaddr *)&frame->to;
    for (int tries = 0;; tries++) {
        if (sendto(port->socket, frame->payload, frame->length, 0, to, length_of(&frame->to)) >= 0) {
            port->counters.tx_datagrams++;
            port->counters.tx_bytes += frame->length;
            if (!frame->twice) {
                break;
            }
            frame->twice = false;
        } else if (errno == EAGAIN || errno == ENOBUFS) {
            return false;
        } else if (errno != ECONNREFUSED || tries > 0) { /* that one is of an earlier datagram */
            port->counters.tx_errors++;
            break;
        }
    }
    give_back(port, at);
    return true;
}

/* Wakes the lane when the next frame that is held back is due. */
static void set_timer(struct port *port) {
    struct itimerspec at = {0};
    if (port->delayed_count > 0) {
        int64_t due_ns = port->frames[port->delayed[port->delayed_count - 1]].due_ns;
        at.it_value.tv_sec = due_ns / 1000000000;
        at.it_value.tv_nsec = due_ns % 1000000000;
    }
    timerfd_settime(port->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Sends what was held back long enough. False: the socket has no room. */
static bool send_due(struct port *port) {
    if (port->delayed_count == 0) {
        return true;
    }
    int64_t now = now_ns();
    bool all = true;
    uint32_t before = port->delayed_count;
    while (all && port->delayed_count > 0 && port->frames[port->delayed[port->delayed_count - 1]].due_ns <= now) {
        all = transmit(port, port->delayed[port->delayed_count - 1]);
        port->delayed_count -= all;
    }
    if (port->delayed_count != before) {
        set_timer(port);
    }
    return all;
}

static void hold_back(struct port *port, uint32_t at) {
    uint32_t place = port->delayed_count++;
    /* The latest first; behind those that are due at the same time. */
    while (place > 0 && port->frames[port->delayed[place - 1]].due_ns <= port->frames[at].due_ns) {
        port->delayed[place] = port->delayed[place - 1];
        place--;
    }
    port->delayed[place] = at;
}

static int flush(void *handle) {
    struct port *port = handle;
    const struct lossy *how = port->how;
    bool room = send_due(port), held = false;
    uint32_t done = 0;
    while (room && done < port->queue_count) {
        uint32_t at = port->queue[done];
        struct frame *frame = &port->frames[at];
        if (frame->due_ns == INT64_MIN) {
            if (has_failed(port) || happens(port, how->loss)) {
                /* For who sends, it was sent. */
                port->counters.tx_datagrams++;
                port->counters.tx_bytes += frame->length;
                give_back(port, at);
                done++;
                continue;
            }
            frame->twice = happens(port, how->duplicate);
            uint64_t delay = how->delay_ns + (how->jitter_ns ? next_random(port) % how->jitter_ns : 0);
            if (happens(port, how->reorder)) {
                delay += 1000000;
            }
            frame->due_ns = delay ? now_ns() + (int64_t)delay : 0;
        }
        if (frame->due_ns > 0) {
            hold_back(port, at);
            held = true;
        } else {
            room = transmit(port, at);
        }
        done += room;
    }
    memmove(port->queue, port->queue + done, (port->queue_count - done) * sizeof(port->queue[0]));
    port->queue_count -= done;
    if (held) {
        set_timer(port);
    }
    return port->queue_count == 0;
}

static size_t receive(void *handle, size_t budget, takt_dp_deliver deliver, void *context) {
    struct port *port = handle;
    static _Thread_local uint8_t memory[65536];
    size_t count = 0, taken = 0;
    send_due(port);
    while (taken < budget) {
        struct sockaddr_storage from;
        socklen_t told = sizeof(from);
        ssize_t length = recvfrom(port->socket, memory, sizeof(memory), 0, (struct sockaddr *)&from, &told);
        if (length < 0) {
            if (errno == ECONNREFUSED || errno == EINTR) {
                continue; /* of a datagram that was sent */
            }
            break;
        }
        taken++;
        if (has_failed(port)) {
            port->counters.rx_dropped++;
            continue;
        }
        takt_dp_datagram datagram = {
            .source = from_kernel(&from),
            .destination_port = port->local.port,
            .payload = memory,
            .length = (size_t)length,
        };
        port->counters.rx_datagrams++;
        port->counters.rx_bytes += (uint64_t)length;
        deliver(context, &datagram);
        count++;
    }
    return count;
}

static int receive_costs_syscall(void *handle) {
    (void)handle;
    return 1;
}

static int wait_fd(void *handle) { return ((struct port *)handle)->epoll; }

static void counters(void *handle, takt_dp_counters *told) {
    struct port *port = handle;
    uint32_t memory[SK_MEMINFO_VARS] = {0};
    socklen_t length = sizeof(memory);
    /* The kernel counts in 32 bits what the socket had no room for. */
    if (getsockopt(port->socket, SOL_SOCKET, SO_MEMINFO, memory, &length) == 0) {
        port->counters.rx_dropped += (uint32_t)(memory[SK_MEMINFO_DROPS] - port->dropped);
        port->dropped = memory[SK_MEMINFO_DROPS];
    }
    *told = port->counters;
}

const takt_datapath_plugin_table takt_datapath_plugin = {
    .abi = TAKT_DATAPATH_ABI,
    .size = sizeof(takt_datapath_plugin_table),
    .name = "lossy",
    .version = "1.0",
    .create = create,
    .destroy = destroy,
    .capabilities = capabilities,
    .open = open_port,
    .close = close_port,
    .local = local,
    .connect = connect_peer,
    .disconnect = disconnect,
    .reaches = reaches,
    .max_payload = max_payload,
    .reserve = reserve,
    .payload = payload,
    .commit = commit,
    .cancel = cancel,
    .flush = flush,
    .receive = receive,
    .receive_costs_syscall = receive_costs_syscall,
    .wait_fd = wait_fd,
    .counters = counters,
    .fault = fault,
};
