/* What Rust cannot call of DPDK: inline functions, macros and structures whose layout is DPDK's own. */

#define _GNU_SOURCE
/* The calls with which drivers ask to be told of events, also those of other projects. */
#define ALLOW_EXPERIMENTAL_API
#define ALLOW_INTERNAL_API
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_bus.h>
#include <rte_cycles.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_interrupts.h>
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

/* Between two attempts of a client to connect. */
#define CONNECT_AGAIN_US 100000

enum { CONTINUED = 1, GOOD_CHECKSUM = 2, BAD_CHECKSUM = 4 };

/* The memif driver maps and unmaps the memory that it shares with a peer in DPDK's interrupt thread, without a lock
 * against the threads that send and receive: a peer that goes would take the memory away under a burst. The first thing
 * the driver does with each message and with each end of a connection is a line of its log, which `hear` gets in
 * that thread: there bursts are kept out and waited for, until that thread is done with the connection. There is no
 * connection without a message: while no such line has been heard, there are no bursts.
 *
 * Who is heard has the lock of the log. A burst that has something to log waits for that lock, and would be waited for: it is
 * given up after a while, and with it, for good, all bursts on memory that somebody else takes away. */
static const char CHANGE[] = "memif_msg_receive(): ";
#define LONGEST_BURST_S 5
static atomic_bool changing;
static atomic_bool heard;
static atomic_bool stuck;
static struct {
	bool changes;
	atomic_uint bursts;
	/* Stopped: no bursts. */
	atomic_bool away;
	/* Somebody is about to connect again. */
	atomic_bool connecting;
	/* Where peers of a memif meet, and whether this one listens there. */
	char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
	bool server;
} shared[RTE_MAX_ETHPORTS];

/* Runs in the interrupt thread, hence after what it does now. */
static void has_changed(void *argument)
{
	(void)argument;
	if (!atomic_load(&stuck))
		atomic_store(&changing, false);
}

static void wait_for_bursts(uint16_t port)
{
	while (atomic_load(&shared[port].bursts) != 0)
		sched_yield();
}

static void keep_bursts_out(void)
{
	struct timespec now, until;
	atomic_store(&changing, true);
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LONGEST_BURST_S;
	for (uint16_t port = 0; port < RTE_MAX_ETHPORTS; port++)
		while (atomic_load(&shared[port].bursts) != 0 && !atomic_load(&stuck)) {
			sched_yield();
			clock_gettime(CLOCK_MONOTONIC, &now);
			if (now.tv_sec > until.tv_sec || (now.tv_sec == until.tv_sec && now.tv_nsec > until.tv_nsec))
				atomic_store(&stuck, true);
		}
	if (rte_eal_alarm_set(1, has_changed, NULL) != 0)
		has_changed(NULL);
}

/* False: no burst now. Sequentially consistent, as `keep_bursts_out` is: one of the two sees the other. */
static inline bool enter(uint16_t port)
{
	if (!shared[port].changes)
		return true;
	atomic_fetch_add(&shared[port].bursts, 1);
	if (atomic_load(&heard) && !atomic_load(&changing) && !atomic_load(&shared[port].away))
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

/* Whether a line of the log, whatever is in front, tells of a message to the memif driver. */
int takt_dpdk_tells_of_change(const char *text, size_t size)
{
	return memmem(text, size, CHANGE, sizeof(CHANGE) - 1) != NULL;
}

static ssize_t hear(void *cookie, const char *text, size_t size)
{
	(void)cookie;
	if (takt_dpdk_tells_of_change(text, size)) {
		atomic_store(&heard, true);
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
		/* Whatever `eal` says of levels. */
		if (rte_log_get_global_level() < RTE_LOG_DEBUG)
			rte_log_set_global_level(RTE_LOG_DEBUG);
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

/* The interrupt thread takes events in bunches and finds whom one is for by the number of its descriptor. The memif
 * driver does not reckon with that: an event of a socket that was closed in the same bunch goes to whoever has got the
 * number, and waits for what never comes in `accept` or `recvmsg`; that of a listener whose device has gone is handled
 * in memory that was given back. Hence connections are opened and closed in that thread only, no two in a bunch, and a
 * device is closed when no event of its sockets can be under way any more. */
struct work {
	int (*run)(void *argument);
	void *argument;
	int result;
	sem_t done;
};

static pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
static struct work *work;
static int work_bell = -1;
/* What never happens: takes the place of sockets. */
static int silence = -1;

static void do_work(void *argument)
{
	(void)argument;
	uint64_t rung;
	if (read(work_bell, &rung, sizeof(rung)) != sizeof(rung))
		return;
	work->result = work->run(work->argument);
	sem_post(&work->done);
}

static int hear_the_bell(void)
{
	struct rte_intr_handle *handle = rte_intr_instance_alloc(RTE_INTR_INSTANCE_F_PRIVATE);
	if (handle == NULL)
		return -ENOMEM;
	silence = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (silence >= 0 && bell >= 0 && rte_intr_fd_set(handle, bell) == 0 &&
	    rte_intr_type_set(handle, RTE_INTR_HANDLE_EXT) == 0) {
		work_bell = bell;
		/* The thread has its own copy of the handle; this one and the bell are there for good. */
		if (rte_intr_callback_register(handle, do_work, NULL) == 0)
			return 0;
		work_bell = -1;
	}
	close(silence);
	close(bell);
	rte_intr_instance_free(handle);
	return -ENOMEM;
}

/* Runs this in DPDK's interrupt thread, in a bunch of its own, and waits for the result. */
static int in_interrupt_thread(int (*run)(void *), void *argument)
{
	struct work next = { .run = run, .argument = argument };
	const uint64_t once = 1;
	pthread_mutex_lock(&work_lock);
	int result = work_bell >= 0 ? 0 : hear_the_bell();
	if (result == 0 && sem_init(&next.done, 0, 0) != 0)
		result = -errno;
	if (result == 0) {
		work = &next;
		/* The bell is silent: it cannot be full. */
		if (write(work_bell, &once, sizeof(once)) != sizeof(once))
			abort();
		while (sem_wait(&next.done) != 0)
			;
		sem_destroy(&next.done);
		result = next.result;
	}
	pthread_mutex_unlock(&work_lock);
	return result;
}

static bool is_memif(const char *name)
{
	return strncmp(name, "net_memif", strlen("net_memif")) == 0;
}

static int probe(void *device)
{
	return rte_dev_probe(device);
}

/* The value of an argument in `driver,key=value,…`, and its length. */
static const char *argument_of(const char *device, const char *key, size_t *length)
{
	size_t size = strlen(key);
	for (const char *at = strchr(device, ','); at != NULL; at = strchr(at, ',')) {
		at++;
		if (strncmp(at, key, size) == 0 && at[size] == '=') {
			*length = strcspn(at + size + 1, ",");
			return at + size + 1;
		}
	}
	return NULL;
}

static void remember_socket(uint16_t port, const char *device)
{
	size_t length;
	const char *role = argument_of(device, "role", &length);
	shared[port].server = role != NULL && (strncmp(role, "server", length) == 0 || strncmp(role, "master", length) == 0);
	const char *socket = argument_of(device, "socket", &length);
	/* The driver's own choice. */
	if (socket == NULL)
		socket = "/run/memif.sock", length = strlen(socket);
	length = RTE_MIN(length, sizeof(shared[port].socket) - 1);
	memcpy(shared[port].socket, socket, length);
	shared[port].socket[length] = 0;
}

/* The port of a device that is attached for this, or a negative errno. */
int takt_dpdk_attach(const char *device, const char *name)
{
	uint16_t port;
	if (rte_eth_dev_get_port_by_name(name, &port) == 0)
		return -EEXIST;
	int result = is_memif(name) ? in_interrupt_thread(probe, (void *)device) : rte_dev_probe(device);
	if (result < 0)
		return result == -1 ? -ENODEV : result;
	if (rte_eth_dev_get_port_by_name(name, &port) != 0)
		return -ENODEV;
	shared[port].changes = is_memif(name);
	if (shared[port].changes)
		remember_socket(port, device);
	return port;
}

/* Whether `ask` says this name of a socket. */
static bool is_named(int (*ask)(int, struct sockaddr *, socklen_t *), int fd, const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNSPEC };
	socklen_t size = sizeof(address);
	if (ask(fd, (struct sockaddr *)&address, &size) != 0 || address.sun_family != AF_UNIX)
		return false;
	/* Abstract names have a zero in front. */
	const char *path = address.sun_path + (address.sun_path[0] == 0);
	size_t room = sizeof(address.sun_path) - (size_t)(path - address.sun_path);
	return strnlen(path, room) == strlen(name) && memcmp(path, name, strlen(name)) == 0;
}

/* How many sockets the device has of its own; none where others share them. `silent`: silence takes their place. */
static unsigned find_sockets(uint16_t port, bool silent)
{
	const char *name = shared[port].socket;
	bool server = shared[port].server;
	for (uint16_t other = 0; other < RTE_MAX_ETHPORTS; other++)
		if (other != port && shared[other].changes && shared[other].server == server &&
		    strcmp(shared[other].socket, name) == 0)
			return 0;
	DIR *directory = opendir("/proc/self/fd");
	if (directory == NULL)
		return 0;
	unsigned count = 0;
	for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
		int fd = atoi(entry->d_name);
		int type;
		socklen_t size = sizeof(type);
		if (fd <= 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 || type != SOCK_SEQPACKET)
			continue;
		if (is_named(server ? getsockname : getpeername, fd, name)) {
			if (silent)
				dup3(silence, fd, O_CLOEXEC);
			count++;
		}
	}
	closedir(directory);
	return count;
}

/* Puts silence in the place of a device's sockets: what comes from here on is no event any more. */
static int fall_silent(void *argument)
{
	find_sockets(*(const uint16_t *)argument, true);
	return 0;
}

/* Runs in the interrupt thread. The driver connects when a device starts, and never again. */
static void connect_again(void *argument)
{
	uint16_t port = (uint16_t)(uintptr_t)argument;
	/* With a socket it has just come up, or is about to. */
	if (find_sockets(port, false) == 0) {
		atomic_store(&shared[port].away, true);
		wait_for_bursts(port);
		rte_eth_dev_stop(port);
		if (rte_eth_dev_start(port) == 0)
			atomic_store(&shared[port].away, false);
	}
	atomic_store(&shared[port].connecting, false);
}

static int detach(void *argument)
{
	uint16_t port = *(const uint16_t *)argument;
	struct rte_eth_dev_info info;
	int known = rte_eth_dev_info_get(port, &info) == 0;
	if (shared[port].changes)
		rte_eal_alarm_cancel(connect_again, (void *)(uintptr_t)port);
	shared[port].changes = false;
	atomic_store(&shared[port].connecting, false);
	atomic_store(&shared[port].away, false);
	rte_eth_dev_stop(port);
	rte_eth_dev_close(port);
	if (known && info.device != NULL)
		rte_dev_remove(info.device);
	return 0;
}

/* Closes a port and takes its device away. */
void takt_dpdk_detach(uint16_t port)
{
	if (!shared[port].changes) {
		detach(&port);
		return;
	}
	in_interrupt_thread(fall_silent, &port);
	in_interrupt_thread(detach, &port);
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
static int start(uint16_t port, uint16_t queues, uint16_t mtu, int accepts, struct rte_mempool *pool,
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

struct start {
	uint16_t port, queues, mtu;
	int accepts;
	struct rte_mempool *pool;
	struct takt_traits *traits;
};

static int start_now(void *argument)
{
	struct start *with = argument;
	return start(with->port, with->queues, with->mtu, with->accepts, with->pool, with->traits);
}

int takt_dpdk_start(uint16_t port, uint16_t queues, uint16_t mtu, int accepts, struct rte_mempool *pool,
		    struct takt_traits *traits)
{
	struct start with = { port, queues, mtu, accepts, pool, traits };
	return shared[port].changes ? in_interrupt_thread(start_now, &with) : start_now(&with);
}

/* 1: the link is up. 0: it is not; a client of memif without a connection will soon try to make one. -1: it is up, and
 * nothing has told of it that would tell of its end. -2: there are no bursts any more, since one did not end. */
int takt_dpdk_link(uint16_t port)
{
	struct rte_eth_link link;
	if (shared[port].changes && atomic_load(&stuck))
		return -2;
	memset(&link, 0, sizeof(link));
	if (rte_eth_link_get_nowait(port, &link) == 0 && link.link_status == RTE_ETH_LINK_UP)
		return !shared[port].changes || atomic_load(&heard) ? 1 : -1;
	if (shared[port].changes && !shared[port].server && !atomic_exchange(&shared[port].connecting, true) &&
	    rte_eal_alarm_set(CONNECT_AGAIN_US, connect_again, (void *)(uintptr_t)port) != 0)
		atomic_store(&shared[port].connecting, false);
	return 0;
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
