/* Over AF_XDP: `xdp serve INTERFACE ADDRESS`, `xdp ping COUNT LENGTH INTERFACE ADDRESS PEER_ADDRESS PEER_MAC`. Queue 0; all that
 * arrives there is taken from the kernel meanwhile. */
#include <errno.h>
#include <linux/if_link.h>
#include <net/if.h>
#include <netinet/ether.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include <xdp/xsk.h>

#include "benchmark.h"
#include "frame.h"

#define FRAMES 4096u
#define ROOM XSK_UMEM__DEFAULT_FRAME_SIZE
#define RING 2048u
/* Fewer than the ring has: the kernel says late what it has taken from there. */
#define RECEIVES 1024u

static uint8_t *area;
static struct xsk_socket *endpoint;
static struct xsk_ring_prod fill, transmit;
static struct xsk_ring_cons completion, receive;
static uint64_t free_frames[FRAMES], writing, reading;
static uint32_t free_count;
static struct ends ends;

static void network_open(bool server, char **arguments) {
    if (!arguments[0] || !arguments[1] || (!server && (!arguments[2] || !arguments[3])))
        fail("do without an interface and addresses");
    struct ifreq interface = {0};
    strncpy(interface.ifr_name, arguments[0], IFNAMSIZ - 1);
    int asking = socket(AF_INET, SOCK_DGRAM, 0);
    if (asking < 0 || ioctl(asking, SIOCGIFHWADDR, &interface) < 0)
        fail("find the interface");
    close(asking);
    memcpy(ends.own, interface.ifr_hwaddr.sa_data, ETH_ALEN);
    ends.own_address = inet_addr(arguments[1]);
    if (!server) {
        struct ether_addr *mac = ether_aton(arguments[3]);
        if (!mac)
            fail("read the peer's MAC");
        memcpy(ends.other, mac, ETH_ALEN);
        ends.other_address = inet_addr(arguments[2]);
    }
    area = mmap(NULL, FRAMES * ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (area == MAP_FAILED)
        fail("map memory");
    struct xsk_umem_config memory = {
        .fill_size = RING, .comp_size = RING, .frame_size = ROOM, .frame_headroom = 0, .flags = 0};
    struct xsk_socket_config config = {.rx_size = RING, .tx_size = RING, .bind_flags = XDP_USE_NEED_WAKEUP};
    struct xsk_umem *umem;
    if (xsk_umem__create(&umem, area, FRAMES * ROOM, &fill, &completion, &memory))
        fail("register memory");
    /* The kernel gives a queue free some time after its socket was closed. */
    int error, tries = 0;
    do
        error = xsk_socket__create(&endpoint, arguments[0], 0, umem, &receive, &transmit, &config);
    while (error == -EBUSY && tries++ < 200 && !usleep(10000));
    if (error) {
        fprintf(stderr, "%s: ", strerror(-error));
        fail("open an AF_XDP socket");
    }
    uint32_t at;
    if (xsk_ring_prod__reserve(&fill, RECEIVES, &at) != RECEIVES)
        fail("give memory to receive into");
    for (uint32_t i = 0; i < RECEIVES; i++)
        *xsk_ring_prod__fill_addr(&fill, at + i) = (uint64_t)i * ROOM;
    xsk_ring_prod__submit(&fill, RECEIVES);
    for (uint32_t i = RECEIVES; i < FRAMES; i++)
        free_frames[free_count++] = (uint64_t)i * ROOM;
}

static void wake(void) {
    if (xsk_ring_prod__needs_wakeup(&transmit) &&
        sendto(xsk_socket__fd(endpoint), NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY &&
        errno != ENOBUFS)
        fail("send");
}

static void *network_buffer(size_t length) {
    uint32_t at, count = xsk_ring_cons__peek(&completion, RING, &at);
    for (uint32_t i = 0; i < count; i++)
        free_frames[free_count++] = *xsk_ring_cons__comp_addr(&completion, at + i);
    xsk_ring_cons__release(&completion, count);
    if (length > 1500 - sizeof(struct iphdr) - sizeof(struct udphdr))
        fail("send more than a frame has room for");
    if (!free_count || !xsk_prod_nb_free(&transmit, 1)) {
        wake();
        return NULL;
    }
    writing = free_frames[--free_count];
    return (uint8_t *)xsk_umem__get_data(area, writing) + sizeof(struct frame);
}

static void network_send(size_t length) {
    uint32_t at;
    frame_write(xsk_umem__get_data(area, writing), &ends, length);
    if (!xsk_ring_prod__reserve(&transmit, 1, &at))
        fail("find the room that there was");
    *xsk_ring_prod__tx_desc(&transmit, at) =
        (struct xdp_desc){.addr = writing, .len = sizeof(struct frame) + length};
    xsk_ring_prod__submit(&transmit, 1);
    wake();
}

static size_t network_receive(void **message) {
    uint32_t at;
    if (!xsk_ring_cons__peek(&receive, 1, &at)) {
        if (xsk_ring_prod__needs_wakeup(&fill))
            recvfrom(xsk_socket__fd(endpoint), NULL, 0, MSG_DONTWAIT, NULL, NULL);
        return 0;
    }
    const struct xdp_desc *descriptor = xsk_ring_cons__rx_desc(&receive, at);
    reading = descriptor->addr;
    uint8_t *frame = xsk_umem__get_data(area, reading);
    size_t length = frame_read((struct frame *)frame, descriptor->len, &ends);
    *message = frame + sizeof(struct frame);
    if (!length)
        network_release();
    return length;
}

static void network_release(void) {
    uint32_t at;
    xsk_ring_cons__release(&receive, 1);
    if (!xsk_ring_prod__reserve(&fill, 1, &at))
        fail("give memory back");
    *xsk_ring_prod__fill_addr(&fill, at) = reading - reading % ROOM;
    xsk_ring_prod__submit(&fill, 1);
}
