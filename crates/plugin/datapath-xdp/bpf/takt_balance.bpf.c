// SPDX-License-Identifier: Apache-2.0
/*
 * Spreads the packets of services over cores (CPUMAP) and neighbours (redirect): crates/system/balance, in the kernel.
 *
 * A packet's bundle is named by its receive queue and the low bits of its flow's hash, so that every bundle, and every path
 * from a queue to a core, has one writer. Who administers it writes `takt_wishes` and `takt_neighbours`; that counts
 * from the next packet on.
 *
 * Order: a bundle moves when its last packet is older than δ and, in native mode, has left the queue of its core. The
 * stamp of each packet travels with it as metadata; `takt_balance_core`, which runs where the packet is taken out, writes
 * down the last one.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff
/* User space has the same numbers. */
#define MOST_CORES 64
#define MOST_NEIGHBOURS 64
/* Targets: none, cores from 1 on, neighbours from 0x100 on, and anywhere else. */
#define NOWHERE 0
#define NEIGHBOUR 0x100
#define AWAY 0xffff
/* A packet that was not seen at the far end of a queue for so long was lost. */
#define LOST_NS 1000000000ULL

struct endpoint {
	union {
		__u8 bytes[16];
		__be32 words[4];
	} address;
	__be16 port;
	__u8 protocol;
	__u8 zero;
};

struct bundle {
	__u64 last;
	__u32 target;
	__u32 zero;
};

/* From a queue to a core, as the sender sees it. */
struct path {
	__u64 last;
	/* Since when there has been something in the queue. */
	__u64 busy;
	/* Since when it has not been overloaded. */
	__u64 relieved;
	__u32 overloaded;
	__u32 zero;
};

struct neighbour {
	__u64 heard;
	__u32 port;
	__u8 mac[ETH_ALEN];
	__u8 source[ETH_ALEN];
	__u32 usable;
	__u32 overloaded;
};

struct settings {
	__u64 delta;
	__u64 hold;
	__u64 silence;
	/* Waiting times. */
	__u64 high;
	__u64 low;
	__u32 mask;
	__u32 cores;
	__u32 neighbours;
	__u32 native;
};

struct counters {
	__u64 packets;
	__u64 passed;
	__u64 to_cores;
	__u64 to_neighbours;
	__u64 returns;
	__u64 held;
	__u64 fenced;
};

/* What travels with a packet. */
struct stamp {
	__u64 at;
	__u32 path;
	__u32 zero;
};

#define ARRAY(name, type_of_value, entries) \
	struct { \
		__uint(type, BPF_MAP_TYPE_ARRAY); \
		__uint(max_entries, entries); \
		__type(key, __u32); \
		__type(value, type_of_value); \
	} name SEC(".maps")

ARRAY(takt_settings, struct settings, 1);
/* Of each queue; user space sets the sizes. */
ARRAY(takt_bundles, struct bundle, 1);
ARRAY(takt_paths, struct path, MOST_CORES);
ARRAY(takt_done, __u64, MOST_CORES);
/* Of all queues. */
ARRAY(takt_wishes, __u32, 1);
ARRAY(takt_neighbours, struct neighbour, MOST_NEIGHBOURS);

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct endpoint);
	__type(value, __u32);
} takt_services SEC(".maps");

/* The processor of each core. */
ARRAY(takt_processors, __u32, MOST_CORES);

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 8);
} takt_queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counters);
} takt_balance_counters SEC(".maps");

static __always_inline __u32 mix(__u32 hash, __u32 word)
{
	hash ^= word;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return hash ^ (hash >> 16);
}

/* Whom the packet is for, and its flow's hash; false when it is not whole, or neither UDP nor TCP. */
static __always_inline bool flow(struct xdp_md *ctx, struct endpoint *to, __u32 *hash)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	__be16 *ports;

	if ((void *)(eth + 1) > end)
		return false;
	if (eth->h_proto == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end || ip->ihl < 5)
			return false;
		if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
			return false;
		to->address.words[2] = bpf_htonl(0xffff);
		to->address.words[3] = ip->daddr;
		to->protocol = ip->protocol;
		*hash = mix(ip->saddr, ip->daddr);
		ports = (void *)ip + ip->ihl * 4;
	} else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = (void *)(eth + 1);

		if ((void *)(ip + 1) > end)
			return false;
		__builtin_memcpy(&to->address, &ip->daddr, sizeof(to->address));
		to->protocol = ip->nexthdr;
		*hash = 0;
#pragma unroll
		for (int i = 0; i < 4; i++)
			*hash = mix(*hash ^ ip->saddr.in6_u.u6_addr32[i], ip->daddr.in6_u.u6_addr32[i]);
		ports = (void *)(ip + 1);
	} else {
		return false;
	}
	if (to->protocol != IPPROTO_UDP && to->protocol != IPPROTO_TCP)
		return false;
	if ((void *)(ports + 2) > end)
		return false;
	to->port = ports[1];
	*hash = mix(*hash ^ to->protocol, (__u32)ports[0] << 16 | ports[1]);
	return true;
}

/* How long the oldest packet of a path waits at most. */
static __always_inline __u64 waiting(const struct path *path, __u64 done, __u64 now)
{
	__u64 since;

	if (path->last <= done || now - path->last > LOST_NS)
		return 0;
	since = done > path->busy ? done : path->busy;
	return now > since ? now - since : 0;
}

/* Whether a core is overloaded for this queue; `wait` is how long its queue is. */
static __always_inline bool overloaded(__u32 at, __u64 now, const struct settings *settings, __u64 *wait)
{
	struct path *path = bpf_map_lookup_elem(&takt_paths, &at);
	__u64 *done = bpf_map_lookup_elem(&takt_done, &at);

	if (!path || !done)
		return true;
	*wait = waiting(path, *(volatile __u64 *)done, now);
	if (*wait >= settings->high) {
		path->overloaded = 1;
	} else if (path->overloaded && *wait <= settings->low) {
		path->overloaded = 0;
		path->relieved = now;
	}
	return path->overloaded;
}

/* The first core from the hash's on, but one, that is not overloaded; NOWHERE if all are. */
static __always_inline __u32 free_core(__u32 queue, __u32 hash, __u32 except, __u64 now,
				       const struct settings *settings)
{
	__u32 cores = settings->cores;
	__u32 start = cores ? hash % cores : 0;

	for (__u32 i = 0; i < MOST_CORES; i++) {
		__u32 core = start + i;
		__u64 wait;

		if (i >= cores)
			break;
		if (core >= cores)
			core -= cores;
		if (core + 1 != except && !overloaded(queue * MOST_CORES + core, now, settings, &wait))
			return core + 1;
	}
	return NOWHERE;
}

static __always_inline bool dead(const struct neighbour *neighbour, __u64 now, const struct settings *settings)
{
	return !neighbour->usable || now - neighbour->heard > settings->silence;
}

static __always_inline __u32 free_neighbour(__u32 hash, __u32 except, __u64 now, const struct settings *settings)
{
	__u32 count = settings->neighbours;
	__u32 start = count ? hash % count : 0;

	for (__u32 i = 0; i < MOST_NEIGHBOURS; i++) {
		struct neighbour *neighbour;
		__u32 at = start + i;

		if (i >= count)
			break;
		if (at >= count)
			at -= count;
		neighbour = bpf_map_lookup_elem(&takt_neighbours, &at);
		if (neighbour && NEIGHBOUR + at != except && !neighbour->overloaded && !dead(neighbour, now, settings))
			return NEIGHBOUR + at;
	}
	return NOWHERE;
}

/* Where somebody wants the bundle to go, if it can. */
static __always_inline __u32 wished(__u32 wish, __u64 now, const struct settings *settings)
{
	if (wish > NOWHERE && wish <= settings->cores)
		return wish;
	if (wish >= NEIGHBOUR && wish < NEIGHBOUR + settings->neighbours) {
		__u32 which = wish - NEIGHBOUR;
		struct neighbour *neighbour = bpf_map_lookup_elem(&takt_neighbours, &which);

		if (neighbour && !dead(neighbour, now, settings))
			return wish;
	}
	return NOWHERE;
}

static __always_inline __u32 elsewhere(__u32 queue, __u32 hash, __u32 except, __u64 now,
				       const struct settings *settings)
{
	__u32 found = free_core(queue, hash, except, now, settings);

	return found ? found : free_neighbour(hash, except, now, settings);
}

static __always_inline int to_neighbour(struct xdp_md *ctx, const struct neighbour *neighbour)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;

	if ((void *)(eth + 1) > end)
		return XDP_DROP;
	__builtin_memcpy(eth->h_dest, neighbour->mac, ETH_ALEN);
	__builtin_memcpy(eth->h_source, neighbour->source, ETH_ALEN);
	return bpf_redirect(neighbour->port, 0);
}

static __always_inline int to_core(struct xdp_md *ctx, __u32 queue, __u32 core, __u64 now,
				   const struct settings *settings)
{
	__u32 at = queue * MOST_CORES + core;
	struct path *path = bpf_map_lookup_elem(&takt_paths, &at);
	__u64 *done = bpf_map_lookup_elem(&takt_done, &at);
	__u32 *processor = bpf_map_lookup_elem(&takt_processors, &core);

	if (!path || !done || !processor)
		return XDP_PASS;
	if (settings->native) {
		struct stamp *stamp;

		if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*stamp)))
			return XDP_DROP;
		stamp = (void *)(long)ctx->data_meta;
		if ((void *)(stamp + 1) > (void *)(long)ctx->data)
			return XDP_DROP;
		stamp->at = now;
		stamp->path = at;
		stamp->zero = 0;
	}
	if (path->last <= *(volatile __u64 *)done)
		path->busy = now;
	path->last = now;
	return bpf_redirect_map(&takt_queues, *processor, XDP_PASS);
}

SEC("xdp.frags")
int takt_balance(struct xdp_md *ctx)
{
	__u32 zero = 0, queue = ctx->rx_queue_index, hash, at, number, next = NOWHERE, *wish;
	struct settings *settings = bpf_map_lookup_elem(&takt_settings, &zero);
	struct counters *counters = bpf_map_lookup_elem(&takt_balance_counters, &zero);
	struct neighbour *neighbour = NULL;
	struct endpoint to = {};
	struct bundle *bundle;
	bool silent, ordered, over = false;
	__u64 now, wait = 0;

	if (!settings || !counters || !settings->cores)
		return XDP_PASS;
	if (!flow(ctx, &to, &hash) || !bpf_map_lookup_elem(&takt_services, &to)) {
		counters->passed++;
		return XDP_PASS;
	}
	number = hash & settings->mask;
	at = queue * (settings->mask + 1) + number;
	bundle = bpf_map_lookup_elem(&takt_bundles, &at);
	wish = bpf_map_lookup_elem(&takt_wishes, &number);
	if (!bundle || !wish) {
		counters->passed++;
		return XDP_PASS;
	}
	counters->packets++;
	/* Never less than the last one's, and never 0. */
	now = bpf_ktime_get_ns();
	hash = mix(hash, 0x9e3779b1);
	silent = now - bundle->last > settings->delta;

	if (bundle->target == NOWHERE) {
		next = wished(*wish, now, settings);
		if (next == NOWHERE)
			next = elsewhere(queue, hash, NOWHERE, now, settings);
		if (next == NOWHERE)
			next = 1 + (settings->cores ? hash % settings->cores : 0);
		bundle->target = next;
	} else {
		__u32 current = bundle->target;
		bool away = false, gone = false;

		if (current >= NEIGHBOUR) {
			__u32 which = current - NEIGHBOUR;

			neighbour = bpf_map_lookup_elem(&takt_neighbours, &which);
			gone = !neighbour || dead(neighbour, now, settings);
			over = neighbour && neighbour->overloaded;
			ordered = silent;
			if (gone && !silent) {
				counters->fenced++;
				return XDP_DROP;
			}
		} else {
			__u32 path_at = queue * MOST_CORES + current - 1;
			__u64 *done = bpf_map_lookup_elem(&takt_done, &path_at);

			over = overloaded(path_at, now, settings, &wait);
			ordered = silent && (!settings->native || now - bundle->last > LOST_NS ||
					     (done && bundle->last <= *(volatile __u64 *)done));
		}
		away = over || gone || *wish == AWAY;
		next = wished(*wish, now, settings);
		if (next != NOWHERE) {
			/* It is told. */
		} else if (ordered) {
			if (current >= NEIGHBOUR && !away) {
				/* Back, when the core that its hash names has been calm for long. */
				__u32 core = settings->cores ? hash % settings->cores : 0;
				__u32 path_at = queue * MOST_CORES + core;
				struct path *path = bpf_map_lookup_elem(&takt_paths, &path_at);

				if (path && !overloaded(path_at, now, settings, &wait) && wait <= settings->low &&
				    now - path->relieved >= settings->hold)
					next = core + 1;
			} else if (away) {
				next = elsewhere(queue, hash, current, now, settings);
				if (next == NOWHERE && gone)
					next = 1 + (settings->cores ? hash % settings->cores : 0);
			}
		} else if (away) {
			counters->held++;
		}
		if (next != NOWHERE && next != current) {
			if (!ordered) {
				counters->held++;
			} else {
				if (next >= NEIGHBOUR)
					counters->to_neighbours++;
				else if (current >= NEIGHBOUR)
					counters->returns++;
				else
					counters->to_cores++;
				bundle->target = next;
			}
		}
	}
	bundle->last = now;
	if (bundle->target >= NEIGHBOUR) {
		__u32 which = bundle->target - NEIGHBOUR;

		neighbour = bpf_map_lookup_elem(&takt_neighbours, &which);
		if (!neighbour || which >= settings->neighbours)
			return XDP_DROP;
		return to_neighbour(ctx, neighbour);
	}
	return to_core(ctx, queue, bundle->target - 1, now, settings);
}

/* On the core that takes a packet out of its queue. */
SEC("xdp.frags/cpumap")
int takt_balance_core(struct xdp_md *ctx)
{
	struct stamp *stamp = (void *)(long)ctx->data_meta;
	__u64 *done;

	if ((void *)(stamp + 1) > (void *)(long)ctx->data)
		return XDP_PASS;
	done = bpf_map_lookup_elem(&takt_done, &stamp->path);
	if (done)
		*(volatile __u64 *)done = stamp->at;
	/* Packets whose metadata differ are not merged (GRO). */
	bpf_xdp_adjust_meta(ctx, sizeof(*stamp));
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
