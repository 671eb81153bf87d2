/* Over libfabric: `fabric serve PROVIDER ADDRESS PORT`, `fabric ping COUNT LENGTH PROVIDER ADDRESS PORT`; PROVIDER: "tcp;ofi_rxm",
 * "verbs;ofi_rxm". */
#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include "benchmark.h"

#define SLOTS 256
#define ROOM 16384
#define ADDRESS_ROOM 64

/* In front of each message: where to answer. */
struct prefix {
    uint64_t address_length;
    uint8_t address[ADDRESS_ROOM];
};

struct slot {
    struct fi_context context;
    uint8_t bytes[sizeof(struct prefix) + ROOM];
};

static struct fid_ep *endpoint;
static struct fid_cq *sent, *received;
static struct fid_av *addresses;
static struct prefix own, known;
static fi_addr_t other = FI_ADDR_UNSPEC;
static struct slot outgoing[SLOTS], incoming[SLOTS];
static void *free_slots[SLOTS], *out_descriptor, *in_descriptor;
static int free_count;
static struct slot *writing, *reading;

static void check(int error, const char *what) {
    if (error < 0) {
        fprintf(stderr, "%s: ", fi_strerror(-error));
        fail(what);
    }
}

static void post(struct slot *slot) {
    ssize_t error;
    while ((error = fi_recv(endpoint, slot->bytes, sizeof slot->bytes, in_descriptor, FI_ADDR_UNSPEC, &slot->context)) ==
           -FI_EAGAIN)
        fi_cq_read(received, NULL, 0);
    check(error, "post a buffer");
}

static void network_open(bool server, char **arguments) {
    if (!arguments[0] || !arguments[1] || !arguments[2])
        fail("do without a provider, an address and a port");
    struct fi_info *hints = fi_allocinfo(), *info;
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_mr *out_memory, *in_memory;
    hints->ep_attr->type = FI_EP_RDM;
    hints->caps = FI_MSG;
    hints->mode = FI_CONTEXT;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
    hints->fabric_attr->prov_name = strdup(arguments[0]);
    check(fi_getinfo(FI_VERSION(1, 17), arguments[1], arguments[2], server ? FI_SOURCE : 0, hints, &info),
          "find the provider");
    struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_MSG, .size = 2 * SLOTS};
    struct fi_av_attr table = {.type = FI_AV_TABLE};
    check(fi_fabric(info->fabric_attr, &fabric, NULL), "open the fabric");
    check(fi_domain(fabric, info, &domain, NULL), "open the domain");
    check(fi_cq_open(domain, &queue, &sent, NULL), "open a completion queue");
    check(fi_cq_open(domain, &queue, &received, NULL), "open a completion queue");
    check(fi_av_open(domain, &table, &addresses, NULL), "open an address vector");
    check(fi_endpoint(domain, info, &endpoint, NULL), "open an endpoint");
    check(fi_ep_bind(endpoint, &sent->fid, FI_TRANSMIT), "bind the completions");
    check(fi_ep_bind(endpoint, &received->fid, FI_RECV), "bind the completions");
    check(fi_ep_bind(endpoint, &addresses->fid, 0), "bind the addresses");
    check(fi_enable(endpoint), "enable the endpoint");
    if (info->domain_attr->mr_mode & FI_MR_LOCAL) {
        check(fi_mr_reg(domain, outgoing, sizeof outgoing, FI_SEND, 0, 1, 0, &out_memory, NULL), "register memory");
        check(fi_mr_reg(domain, incoming, sizeof incoming, FI_RECV, 0, 2, 0, &in_memory, NULL), "register memory");
        out_descriptor = fi_mr_desc(out_memory);
        in_descriptor = fi_mr_desc(in_memory);
    }
    own.address_length = ADDRESS_ROOM;
    check(fi_getname(&endpoint->fid, own.address, &own.address_length), "ask for the address");
    if (!server && fi_av_insert(addresses, info->dest_addr, 1, &other, 0, NULL) != 1)
        fail("take the server's address");
    for (int i = 0; i < SLOTS; i++) {
        free_slots[free_count++] = &outgoing[i];
        post(&incoming[i]);
    }
}

/* The context of what is complete; NULL: nothing is. */
static struct slot *complete(struct fid_cq *queue, size_t *length) {
    struct fi_cq_msg_entry entry;
    ssize_t count = fi_cq_read(queue, &entry, 1);
    if (count == -FI_EAGAIN)
        return NULL;
    if (count < 0)
        fail("go on: the other side has gone");
    *length = entry.len;
    return entry.op_context;
}

/* Takes back what has been sent. */
static void reclaim(void) {
    size_t length;
    struct slot *slot;
    while ((slot = complete(sent, &length)))
        free_slots[free_count++] = slot;
}

static void *network_buffer(size_t length) {
    reclaim();
    if (!free_count || length > ROOM)
        return NULL;
    writing = free_slots[--free_count];
    memcpy(writing->bytes, &own, sizeof own);
    return writing->bytes + sizeof own;
}

static void network_send(size_t length) {
    ssize_t error;
    while ((error = fi_send(endpoint, writing->bytes, sizeof own + length, out_descriptor, other, &writing->context)) ==
           -FI_EAGAIN)
        reclaim();
    check(error, "send");
}

static size_t network_receive(void **message) {
    size_t length;
    reading = complete(received, &length);
    if (!reading)
        return 0;
    struct prefix from;
    memcpy(&from, reading->bytes, sizeof from);
    if (length <= sizeof from || from.address_length > ADDRESS_ROOM)
        fail("understand the other side");
    if (other == FI_ADDR_UNSPEC || memcmp(&from, &known, sizeof from)) {
        if (fi_av_insert(addresses, from.address, 1, &other, 0, NULL) != 1)
            fail("take the other side's address");
        known = from;
    }
    *message = reading->bytes + sizeof from;
    return length - sizeof from;
}

static void network_release(void) {
    post(reading);
}
