/* Over DPDK: `dpdk serve ADDRESS PEER_ADDRESS EAL...`, `dpdk ping COUNT LENGTH ADDRESS PEER_ADDRESS EAL...`: arguments for EAL, such
 * as --no-huge --vdev=net_memif0,role=client. Its first device; both sides are on one link. */
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_mbuf.h>

#include "benchmark.h"
#include "frame.h"

#define DESCRIPTORS 512
#define ROOM 10240
#define BURST 32

static struct rte_mempool *pool;
static struct rte_mbuf *writing, *arrived[BURST];
static uint16_t next, count;
static struct ends ends;

static void network_open(bool server, char **arguments) {
    char *eal[32] = {"dpdk"};
    int given = 1;
    (void)server;
    if (!arguments[0] || !arguments[1])
        fail("do without addresses");
    for (char **argument = arguments + 2; *argument && given < 31; argument++)
        eal[given++] = *argument;
    if (rte_eal_init(given, eal) < 0 || !rte_eth_dev_count_avail())
        fail("start DPDK with a device");
    pool = rte_pktmbuf_pool_create("packets", 4 * DESCRIPTORS + 1, 64, 0, ROOM, SOCKET_ID_ANY);
    if (!pool)
        fail("have memory for packets");
    struct rte_eth_conf config = {0};
    struct rte_ether_addr mac;
    if (rte_eth_dev_configure(0, 1, 1, &config) < 0 ||
        rte_eth_rx_queue_setup(0, 0, DESCRIPTORS, SOCKET_ID_ANY, NULL, pool) < 0 ||
        rte_eth_tx_queue_setup(0, 0, DESCRIPTORS, SOCKET_ID_ANY, NULL) < 0 || rte_eth_dev_start(0) < 0 ||
        rte_eth_macaddr_get(0, &mac) < 0)
        fail("start the device");
    memcpy(ends.own, mac.addr_bytes, ETH_ALEN);
    /* Everybody on the link, until the other side has said who it is. */
    memset(ends.other, 0xff, ETH_ALEN);
    ends.own_address = inet_addr(arguments[0]);
    ends.other_address = inet_addr(arguments[1]);
}

static void *network_buffer(size_t length) {
    writing = rte_pktmbuf_alloc(pool);
    if (!writing)
        return NULL;
    uint8_t *frame = (uint8_t *)rte_pktmbuf_append(writing, sizeof(struct frame) + length);
    if (!frame)
        fail("send more than a packet has room for");
    return frame + sizeof(struct frame);
}

static void network_send(size_t length) {
    frame_write(rte_pktmbuf_mtod(writing, struct frame *), &ends, length);
    while (!rte_eth_tx_burst(0, 0, &writing, 1)) {
        struct rte_eth_link link;
        if (rte_eth_link_get_nowait(0, &link) < 0 || !link.link_status) {
            /* Nobody is there. */
            rte_pktmbuf_free(writing);
            return;
        }
    }
}

static size_t network_receive(void **message) {
    if (next == count) {
        next = 0;
        count = rte_eth_rx_burst(0, 0, arrived, BURST);
        if (!count)
            return 0;
    }
    struct rte_mbuf *packet = arrived[next];
    uint8_t *frame = rte_pktmbuf_mtod(packet, uint8_t *);
    size_t length = packet->nb_segs == 1 ? frame_read((struct frame *)frame, packet->data_len, &ends) : 0;
    *message = frame + sizeof(struct frame);
    if (!length)
        network_release();
    return length;
}

static void network_release(void) {
    rte_pktmbuf_free(arrived[next++]);
}
