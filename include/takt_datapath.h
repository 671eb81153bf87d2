/*
 * takt_datapath.h: a datapath of Takt's in a shared object of its own.
 *
 * A plugin is `libtakt_datapath_NAME.so` in the directory of plugins, and exports one constant:
 *
 *     const takt_datapath_plugin_table takt_datapath_plugin = { TAKT_DATAPATH_ABI, sizeof(takt_datapath_plugin_table), "NAME", ... };
 *
 * The runtime calls its functions; a plugin calls nothing of Takt's but `deliver`. A datapath is one technology on one node. It
 * opens ports; a port belongs to one lane and moves UDP datagrams between this node and its peers. Sending is reserve, writing
 * into payload, commit, and flush for all that was committed. None of these calls, and not receive, may block, allocate or make a
 * system call other than the technology's own. What the calls mean in detail, and a suite that tests it, is in the crate
 * takt-datapath; how to write a plugin: docs/how-to/write-a-datapath.md.
 *
 * A plugin is part of the process and trusted as it. Functions of a datapath may be called by any thread; those of a port by one
 * thread at a time. A plugin is never unloaded.
 */
#ifndef TAKT_DATAPATH_H
#define TAKT_DATAPATH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface. Plugins of another one are refused; additions within one are made at the end of the table. */
#define TAKT_DATAPATH_ABI 1

/* An IP address and a UDP port. */
typedef struct takt_dp_address {
    uint8_t family; /* 4 or 6 */
    uint8_t reserved;
    uint16_t port;  /* host order */
    uint32_t scope; /* of a link-local IPv6 address: the interface's index */
    uint8_t ip[16]; /* network order; an IPv4 address has the first 4 */
} takt_dp_address;

/* An option of the configuration as text; a list has its key once for each value. */
typedef struct takt_dp_option {
    const char *key;
    const char *value;
} takt_dp_option;

/* Why something cannot be opened or connected. */
enum takt_dp_failure_kind {
    TAKT_DP_PRIVILEGE = 1,       /* the process lacks a privilege: text says which, and how to grant it */
    TAKT_DP_BIND = 2,            /* the address or port cannot be bound: os_error */
    TAKT_DP_UNAVAILABLE = 3,     /* not offered here: text says why and what to do */
    TAKT_DP_SYSTEM = 4,          /* a call failed: text says which, os_error why; or text alone, "which: why" */
    TAKT_DP_NO_ROUTE = 5,        /* connect: no route leads there through this datapath */
    TAKT_DP_TOO_MANY_PEERS = 6,  /* connect: limit says how many there may be */
    TAKT_DP_NO_FRAMES = 7,       /* connect_link: the port has no interface of its own */
    TAKT_DP_OTHER_INTERFACE = 8, /* connect_link: not by this interface */
    TAKT_DP_LINK = 9,            /* connect_link: the kernel refuses, os_error */
    TAKT_DP_ADDRESS_FAMILY = 10  /* connect: the peer is of another family than the port */
};

/* Filled by a call that fails. */
typedef struct takt_dp_failure {
    int32_t kind;     /* enum takt_dp_failure_kind */
    int32_t os_error; /* an errno, or 0 */
    uint64_t limit;
    char text[480];   /* UTF-8 for people, ended by a zero: the value at fault and the remedy */
} takt_dp_failure;

/* Bits of takt_dp_capabilities.flags. */
#define TAKT_DP_ACCELERATED 1u   /* bypasses the kernel's network stack: what `acceleration = fast` asks for */
#define TAKT_DP_NEEDS_POLLING 2u /* needs a core that spins to receive at all */
#define TAKT_DP_LAUNCH_TIME 4u   /* frames are sent at their launch times by the device: keeps_launch_time says which */
#define TAKT_DP_ZERO_COPY 8u     /* frames move between user space and the device without a copy */
#define TAKT_DP_NO_UDP 16u       /* datagrams are not UDP on the wire: only ports of this technology exchange them */
#define TAKT_DP_OWN_ADDRESSES 32u /* addresses are not the kernel's: open binds to the unspecified one, local tells which it is */

typedef struct takt_dp_capabilities {
    uint32_t flags;
    uint32_t reserved;
    char detail[480]; /* one line for people, ended by a zero: driver, mode, what was unavailable and why */
} takt_dp_capabilities;

/* Which port a lane wants. */
typedef struct takt_dp_request {
    uint16_t lane;  /* from 0 */
    uint16_t lanes; /* how many the runtime has */
    uint32_t reserved;
    takt_dp_address bind; /* an unspecified address takes every local address; port 0: any */
} takt_dp_request;

/* A datagram that has arrived. */
typedef struct takt_dp_datagram {
    takt_dp_address source;
    uint16_t destination_port; /* the local UDP port that it was for */
    uint16_t reserved[3];
    const uint8_t *payload;    /* until the callback returns */
    size_t length;
} takt_dp_datagram;

/* Counted since a port was opened. Every datagram that it does not deliver is in one of them. */
typedef struct takt_dp_counters {
    uint64_t tx_datagrams; /* handed to the technology, and their payload */
    uint64_t tx_bytes;
    uint64_t tx_errors;    /* committed, and refused by the technology for good */
    uint64_t rx_datagrams; /* delivered, and their payload */
    uint64_t rx_bytes;
    uint64_t rx_dropped;   /* lost below, as far as the technology tells */
    uint64_t rx_invalid;   /* refused by checks of the port's own */
} takt_dp_counters;

/* What reserve gives if it is not 0. */
enum takt_dp_not_reserved {
    TAKT_DP_WOULD_BLOCK = 1, /* all frames are in flight: again after the next flush or receive */
    TAKT_DP_UNRESOLVED = 2,  /* the peer's next hop is not resolved (yet) */
    TAKT_DP_UNKNOWN_PEER = 3 /* the handle names no peer */
};

/* As commit has it where there is no launch time. */
#define TAKT_DP_NO_LAUNCH_TIME INT64_MIN

typedef void (*takt_dp_deliver)(void *context, const takt_dp_datagram *datagram);

/* What a plugin exports as `takt_datapath_plugin`. Functions may be NULL where that is said. int results without another word are 0
 * for success. */
typedef struct takt_datapath_plugin_table {
    uint32_t abi;        /* TAKT_DATAPATH_ABI */
    uint32_t size;       /* sizeof(takt_datapath_plugin_table) */
    const char *name;    /* as in the file's name: 1 to 15 of a-z, 0-9 and - */
    const char *version; /* the plugin's own, for people */

    /* Finds out what is there with these options, and refuses those that it does not know by name. */
    int (*create)(const takt_dp_option *options, size_t count, void **datapath, takt_dp_failure *failure);
    /* Ends a datapath, after all of its ports. */
    void (*destroy)(void *datapath);
    void (*capabilities)(void *datapath, takt_dp_capabilities *capabilities);

    /* Opens a lane's port. Does all allocation and all privileged work; leaves nothing behind when it fails. */
    int (*open)(void *datapath, const takt_dp_request *request, void **port, takt_dp_failure *failure);
    void (*close)(void *port);
    /* The address as peers must use it: the real port where 0 was asked for. */
    void (*local)(void *port, takt_dp_address *address);

    /* Prepares sending to an address; the same one again gives the same handle. May allocate and call the kernel, and must not
     * wait: a next hop that is not resolved is no failure, reserve tells. */
    int (*connect)(void *port, const takt_dp_address *remote, uint32_t *peer, takt_dp_failure *failure);
    /* Prepares sending whole Ethernet frames by an interface, 0: the port's own. NULL: none are sent. */
    int (*connect_link)(void *port, uint32_t interface, uint32_t *peer, takt_dp_failure *failure);
    void (*disconnect)(void *port, uint32_t peer);
    /* Not 0: a route has led there since it was connected, or since the datapath works again. NULL: always. */
    int (*reaches)(void *port, uint32_t peer);
    /* Most octets of payload that one datagram to the peer carries without fragmentation; 0: no such peer. */
    size_t (*max_payload)(void *port, uint32_t peer);

    /* Takes a frame with room for max_payload octets. 0, or enum takt_dp_not_reserved. Several may be reserved at a time. */
    int (*reserve)(void *port, uint32_t peer, uint32_t *frame);
    /* Its memory, and how long that is. */
    uint8_t *(*payload)(void *port, uint32_t frame, size_t *length);
    /* Queues it with its first `length` octets. `traffic_class` is 0 to 7. The launch time, TAI nanoseconds, is meant only where
     * keeps_launch_time says so. Frames leave in the order of their commits. */
    void (*commit)(void *port, uint32_t frame, size_t length, uint8_t traffic_class, int64_t launch_time_ns);
    /* Not 0: frames of this class to this peer may be handed over ahead of their launch time. NULL: never. */
    int (*keeps_launch_time)(void *port, uint32_t peer, uint8_t traffic_class);
    /* Gives a reserved frame back. */
    void (*cancel)(void *port, uint32_t frame);
    /* Hands all committed frames to the technology, as many as it takes, in order. Not 0: nothing is left queued. */
    int (*flush)(void *port);

    /* Shows up to `budget` datagrams that have arrived to `deliver`, in order of arrival. How many they were. */
    size_t (*receive)(void *port, size_t budget, takt_dp_deliver deliver, void *context);
    /* Not 0: a receive that finds nothing costs a system call. */
    int (*receive_costs_syscall)(void *port);
    /* A descriptor that is readable while datagrams wait; the same for the port's whole life. A lane sleeps on it only after a
     * receive that delivered less than its budget. */
    int (*wait_fd)(void *port);
    void (*counters)(void *port, takt_dp_counters *counters);
    /* Most octets of a datagram's payload that the port takes, which senders are told. NULL, or not in the table: any. */
    size_t (*longest_received)(void *port);
    /* Of a datapath, by any thread and quickly, now and then while the node runs. Not 0: nothing passes it at present, and the text
     * of the failure says why and what to do; streams then move to others, and return when it is 0 again. NULL, or not in the
     * table: it is not known to fail. */
    int (*fault)(void *datapath, takt_dp_failure *failure);
} takt_datapath_plugin_table;

#ifdef __cplusplus
}
#endif

#endif
