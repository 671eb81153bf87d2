/* What Rust cannot call of DPDK: inline functions, macros and structures whose layout is DPDK's own. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_bus.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_log.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_thash.h>
#include <rte_version.h>

/* The mirror of `Packet` in ffi.rs. */
struct takt_packet {
	struct rte_mbuf *mbuf;
	const uint8_t *data;
	uint32_t length;
	uint32_t flags;
};

/* The mirror of `Traits` in ffi.rs. */
struct takt_traits {
	uint8_t mac[6];
	uint16_t queues;
	uint16_t mtu;
	uint16_t most_mtu;
	uint16_t rx_descriptors;
	uint16_t tx_descriptors;
	uint8_t rx_checksums;
	uint8_t can_scatter;
	char driver[32];
};

/* The mirror of `Losses` in ffi.rs. */
struct takt_losses {
	uint64_t rx_missed;
	uint64_t rx_errors;
	uint64_t tx_errors;
};

enum { CONTINUED = 1, GOOD_CHECKSUM = 2, BAD_CHECKSUM = 4 };

/* The memif driver maps and unmaps the memory that it shares with a peer in DPDK's interrupt thread, without a lock
 * against the threads that send and receive: a peer that goes would take the memory away under a burst. The first thing
 * the driver does with each message and with each end of a connection is a line of its log, which `hear` gets in
 * that thread: there bursts are kept out and waited for, until that thread is done with the connection. */
static const char CHANGE[] = "memif_msg_receive(): ";
static atomic_bool changing;
static struct {
	bool changes;
	atomic_uint bursts;
} shared[RTE_MAX_ETHPORTS];

/* Runs in the interrupt thread, hence after what it does now. */
static void has_changed(void *argument)
{
	(void)argument;
	atomic_store(&changing, false);
}

static void keep_bursts_out(void)
{
	atomic_store(&changing, true);
	for (unsigned port = 0; port < RTE_MAX_ETHPORTS; port++)
		while (atomic_load(&shared[port].bursts) != 0)
			sched_yield();
	if (rte_eal_alarm_set(1, has_changed, NULL) != 0)
		atomic_store(&changing, false);
}

/* False: no burst now. Sequentially consistent, as `keep_bursts_out` is: one of the two sees the other. */
static inline bool enter(uint16_t port)
{
	if (!shared[port].changes)
		return true;
	atomic_fetch_add(&shared[port].bursts, 1);
	if (!atomic_load(&changing))
		return true;
	atomic_fetch_sub(&shared[port].bursts, 1);
	return false;
}

static inline void leave(uint16_t port)
{
	if (shared[port].changes)
		atomic_fetch_sub(&shared[port].bursts, 1);
}

/* The last lines of DPDK's log: what its errors are explained with. */
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;
static char said[2048];
static size_t said_length;

static ssize_t hear(void *cookie, const char *text, size_t size)
{
	(void)cookie;
	if (size >= sizeof(CHANGE) && memcmp(text, CHANGE, sizeof(CHANGE) - 1) == 0) {
		keep_bursts_out();
		return (ssize_t)size;
	}
	pthread_mutex_lock(&said_lock);
	const char *from = text;
	size_t count = size;
	if (count > sizeof(said)) {
		from += count - sizeof(said);
		count = sizeof(said);
	}
	if (said_length + count > sizeof(said)) {
		size_t excess = said_length + count - sizeof(said);
		memmove(said, said + excess, said_length - excess);
		said_length -= excess;
	}
	memcpy(said + said_length, from, count);
	said_length += count;
	pthread_mutex_unlock(&said_lock);
	return (ssize_t)size;
}

/* Takes what DPDK has said since the last time. */
size_t takt_dpdk_said(char *buffer, size_t size)
{
	pthread_mutex_lock(&said_lock);
	size_t count = said_length < size ? said_length : size;
	memcpy(buffer, said, count);
	said_length = 0;
	pthread_mutex_unlock(&said_lock);
	return count;
}

/* 0, or an errno. */
int takt_dpdk_init(int argc, char **argv)
{
	static FILE *log;
	if (log == NULL) {
		cookie_io_functions_t functions = { .write = hear };
		log = fopencookie(NULL, "w", functions);
		if (log != NULL) {
			setvbuf(log, NULL, _IOLBF, 256);
			rte_openlog_stream(log);
		}
	}
	if (rte_eal_init(argc, argv) >= 0) {
		rte_log_set_level_pattern("pmd.net.memif", RTE_LOG_DEBUG);
		/* Nothing is put there without a shared configuration, and nobody else takes it away. */
		rmdir(rte_eal_get_runtime_dir());
		return 0;
	}
	return rte_errno != 0 ? rte_errno : EINVAL;
}

const char *takt_dpdk_version(void)
{
	return rte_version();
}

/* This thread gets caches of its own in memory pools. */
int takt_dpdk_register_thread(void)
{
	return rte_lcore_id() != LCORE_ID_ANY ? 0 : rte_thread_register();
}

void takt_dpdk_unregister_thread(void)
{
	rte_thread_unregister();
}

/* The port of a device that is attached for this, or a negative errno. */
int takt_dpdk_attach(const char *device, const char *name)
{
	uint16_t port;
	if (rte_eth_dev_get_port_by_name(name, &port) == 0)
		return -EEXIST;
	int result = rte_dev_probe(device);
	if (result < 0)
		return result == -1 ? -ENODEV : result;
	if (rte_eth_dev_get_port_by_name(name, &port) != 0)
		return -ENODEV;
	shared[port].changes = strncmp(name, "net_memif", strlen("net_memif")) == 0;
	return port;
}

static void detach(uint16_t port)
{
	struct rte_eth_dev_info info;
	int known = rte_eth_dev_info_get(port, &info) == 0;
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (known && info.device != NULL)
		rte_dev_remove(info.device);
}

struct detaching {
	uint16_t port;
	sem_t done;
};

static void detach_now(void *argument)
{
	struct detaching *detaching = argument;
	detach(detaching->port);
	sem_post(&detaching->done);
}

/* Closes a port and takes its device away. The memif driver closes connections in DPDK's interrupt thread as well,
 * when the peer goes, without a lock against the thread that closes the port: it is closed in that thread. */
void takt_dpdk_detach(uint16_t port)
{
	struct rte_eth_dev_info info;
	struct detaching detaching = { .port = port };
	if (rte_eth_dev_info_get(port, &info) != 0 || info.driver_name == NULL ||
	    strcmp(info.driver_name, "net_memif") != 0 || sem_init(&detaching.done, 0, 0) != 0) {
		detach(port);
		return;
	}
	if (rte_eal_alarm_set(1, detach_now, &detaching) != 0)
		detach(port);
	else
		while (sem_wait(&detaching.done) != 0)
			;
	sem_destroy(&detaching.done);
}

int takt_dpdk_traits(uint16_t port, struct takt_traits *traits)
{
	struct rte_eth_dev_info info;
	struct rte_ether_addr mac;
	int result = rte_eth_dev_info_get(port, &info);
	if (result == 0)
		result = rte_eth_macaddr_get(port, &mac);
	if (result != 0)
		return result;
	memset(traits, 0, sizeof(*traits));
	memcpy(traits->mac, mac.addr_bytes, 6);
	traits->queues = RTE_MIN(info.max_rx_queues, info.max_tx_queues);
	if (rte_eth_dev_get_mtu(port, &traits->mtu) != 0)
		traits->mtu = RTE_ETHER_MTU;
	traits->most_mtu = info.max_mtu;
	traits->rx_checksums = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_UDP_CKSUM) != 0;
	traits->can_scatter = (info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER) != 0;
	if (info.driver_name != NULL)
		strncpy(traits->driver, info.driver_name, sizeof(traits->driver) - 1);
	return 0;
}

struct rte_mempool *takt_dpdk_pool(const char *name, unsigned count, unsigned cache, uint16_t room, int *error)
{
	struct rte_mempool *pool = rte_pktmbuf_pool_create(name, count, cache, 0,
							    RTE_PKTMBUF_HEADROOM + room, SOCKET_ID_ANY);
	*error = pool == NULL ? rte_errno : 0;
	return pool;
}

void takt_dpdk_free_pool(struct rte_mempool *pool)
{
	rte_mempool_free(pool);
}

/* Sets up all queues, starts the port, and says what has become of the numbers. `accepts`: peers connect to the
 * device, as to a virtio-user server. */
int takt_dpdk_start(uint16_t port, uint16_t queues, uint16_t mtu, int accepts, struct rte_mempool *pool,
		    struct takt_traits *traits)
{
	struct rte_eth_dev_info info;
	int result = rte_eth_dev_info_get(port, &info);
	if (result != 0)
		return result;
	struct rte_eth_conf conf;
	memset(&conf, 0, sizeof(conf));
	if (queues > 1) {
		uint64_t hash = RTE_ETH_RSS_IP | RTE_ETH_RSS_UDP;
		conf.rx_adv_conf.rss_conf.rss_hf = hash & info.flow_type_rss_offloads;
		if (conf.rx_adv_conf.rss_conf.rss_hf != 0)
			conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
	}
	/* The driver of a virtio-user server registers a handler for its connections in any case, and takes it away
	 * again in this case only: left behind, it would be called for whatever gets the number of the descriptor. */
	conf.intr_conf.lsc = accepts && info.dev_flags != NULL && (*info.dev_flags & RTE_ETH_DEV_INTR_LSC) != 0;
	conf.rxmode.mtu = RTE_ETHER_MTU;
	conf.rxmode.offloads = info.rx_offload_capa &
			       (RTE_ETH_RX_OFFLOAD_UDP_CKSUM | RTE_ETH_RX_OFFLOAD_IPV4_CKSUM);
	if (mtu > RTE_ETHER_MTU)
		conf.rxmode.offloads |= info.rx_offload_capa & RTE_ETH_RX_OFFLOAD_SCATTER;
	result = rte_eth_dev_configure(port, queues, queues, &conf);
	if (result != 0)
		return result;
	/* Many virtual devices have no MTU to set: what they take is what fits a buffer. */
	if (mtu != traits->mtu) {
		result = rte_eth_dev_set_mtu(port, mtu);
		if (result != 0 && result != -ENOTSUP)
			return result;
	}
	result = rte_eth_dev_adjust_nb_rx_tx_desc(port, &traits->rx_descriptors, &traits->tx_descriptors);
	if (result != 0)
		return result;
	for (uint16_t queue = 0; queue < queues; queue++) {
		result = rte_eth_rx_queue_setup(port, queue, traits->rx_descriptors, SOCKET_ID_ANY, NULL, pool);
		if (result != 0)
			return result;
		result = rte_eth_tx_queue_setup(port, queue, traits->tx_descriptors, SOCKET_ID_ANY, NULL);
		if (result != 0)
			return result;
	}
	result = rte_eth_dev_start(port);
	if (result != 0)
		return result;
	/* Neighbour discovery needs groups; what cannot be asked for is there already, on virtual devices. */
	(void)rte_eth_allmulticast_enable(port);
	struct rte_ether_addr mac;
	if (rte_eth_macaddr_get(port, &mac) == 0)
		memcpy(traits->mac, mac.addr_bytes, 6);
	return 0;
}

int takt_dpdk_link(uint16_t port)
{
	struct rte_eth_link link;
	memset(&link, 0, sizeof(link));
	return rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP;
}

int takt_dpdk_is_removed(uint16_t port)
{
	return !rte_eth_dev_is_valid_port(port) || rte_eth_dev_is_removed(port);
}

void takt_dpdk_losses(uint16_t port, struct takt_losses *losses)
{
	struct rte_eth_stats stats;
	memset(losses, 0, sizeof(*losses));
	if (rte_eth_stats_get(port, &stats) != 0)
		return;
	losses->rx_missed = stats.imissed + stats.rx_nombuf;
	losses->rx_errors = stats.ierrors;
	losses->tx_errors = stats.oerrors;
}

uint64_t takt_dpdk_cycles(void)
{
	return rte_rdtsc();
}

uint64_t takt_dpdk_cycles_per_second(void)
{
	return rte_get_tsc_hz();
}

uint16_t takt_dpdk_receive(uint16_t port, uint16_t queue, struct takt_packet *packets, uint16_t count)
{
	struct rte_mbuf *burst[32];
	if (!enter(port))
		return 0;
	uint16_t taken = rte_eth_rx_burst(port, queue, burst, RTE_MIN(count, 32));
	leave(port);
	for (uint16_t i = 0; i < taken; i++) {
		struct rte_mbuf *mbuf = burst[i];
		uint64_t checksum = mbuf->ol_flags & RTE_MBUF_F_RX_L4_CKSUM_MASK;
		packets[i].mbuf = mbuf;
		packets[i].data = rte_pktmbuf_mtod(mbuf, const uint8_t *);
		packets[i].length = rte_pktmbuf_pkt_len(mbuf);
		packets[i].flags = (mbuf->nb_segs > 1 ? CONTINUED : 0) |
				   (checksum == RTE_MBUF_F_RX_L4_CKSUM_GOOD ||
				    checksum == RTE_MBUF_F_RX_L4_CKSUM_NONE ? GOOD_CHECKSUM : 0) |
				   (checksum == RTE_MBUF_F_RX_L4_CKSUM_BAD ? BAD_CHECKSUM : 0);
		rte_prefetch0(packets[i].data);
	}
	return taken;
}

/* Copies the segments of a packet together; the caller has room for its length. */
void takt_dpdk_gather(const struct rte_mbuf *mbuf, uint8_t *buffer)
{
	for (; mbuf != NULL; mbuf = mbuf->next) {
		memcpy(buffer, rte_pktmbuf_mtod(mbuf, const uint8_t *), rte_pktmbuf_data_len(mbuf));
		buffer += rte_pktmbuf_data_len(mbuf);
	}
}

/* A buffer, and where its room behind the headroom begins. */
struct rte_mbuf *takt_dpdk_allocate(struct rte_mempool *pool, uint8_t **room)
{
	struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
	if (mbuf != NULL)
		*room = (uint8_t *)mbuf->buf_addr + RTE_PKTMBUF_HEADROOM;
	return mbuf;
}

/* The frame begins `before` bytes ahead of the room and is `length` long. */
void takt_dpdk_shape(struct rte_mbuf *mbuf, uint16_t before, uint16_t length)
{
	mbuf->data_off = RTE_PKTMBUF_HEADROOM - before;
	mbuf->data_len = length;
	mbuf->pkt_len = length;
}

uint16_t takt_dpdk_send(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	if (!enter(port))
		return 0;
	uint16_t taken = rte_eth_tx_burst(port, queue, mbufs, count);
	leave(port);
	return taken;
}

void takt_dpdk_free(struct rte_mbuf **mbufs, unsigned count)
{
	rte_pktmbuf_free_bulk(mbufs, count);
}

/* What this file was compiled for, for Rust to check its own idea of the structures. */
void takt_dpdk_sizes(size_t sizes[4])
{
	sizes[0] = sizeof(struct takt_packet);
	sizes[1] = sizeof(struct takt_traits);
	sizes[2] = sizeof(struct takt_losses);
	sizes[3] = RTE_PKTMBUF_HEADROOM;
}
