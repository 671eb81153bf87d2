// SPDX-License-Identifier: Apache-2.0
/*
 * The data path of load management: bundles of a service's flows go to cores of this host by a CPUMAP, and to
 * neighbours by another destination address or a VXLAN header (RFC 7348).
 *
 * Where a bundle is to go is written into takt_wishes by user space, or by anybody who may write maps. When it goes there is decided
 * here, packet by packet: once the bundle was silent for delta and, where it is on a core, once that core has
 * let out of its queue the last packet that it got, delta ago. So whatever is written, no flow is reordered.
 *
 * A service is UDP or TCP at an address, or a TSN stream without IP (its destination and VLAN, IEEE 802.1Q-2022, clause 35), which
 * goes to neighbours by VXLAN alone: its destination is its name.
 *
 * All other frames are left to the kernel, as are fragments, IPv6 extension headers and more than two VLAN tags.
 *
 * Each map has one writer to an entry: bundles and what was sent belong to the receive queue (the kernel runs a queue on
 * one processor at a time), what is done to the processor that does it, the rest to user space.
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
#define IP_DONT_FRAGMENT 0x4000
#define MOST_VLAN_TAGS 2
#define VXLAN_PORT 4789
#define NOWHERE 0xffffffff
#define ETH_P_AVTP 0x22f0
#define ANY_VLAN 0xffff /* in place of a VLAN: any, or none */
#define VERSION_STREAM 2 /* in place of IP's version */

/* What keeps a link and its clock, and goes no further; and what is not read. */
static const __u16 kept_types[] = {
	ETH_P_ARP,
	0x888e, /* IEEE 802.1X */
	0x8809, /* slow protocols */
	0x88cc, /* LLDP */
	0x88f5, /* MVRP */
	0x88f6, /* MMRP */
	0x88f7, /* PTP */
	0x22ea, /* SRP */
	0x22f1, /* AVTP's own control of a path */
	ETH_P_8021Q, /* one tag more than are read */
	ETH_P_8021AD,
};

/* What user space sets before the program is loaded, and what tells others whose it is. User space has the same. */
struct about {
	__u64 delta_ns;
	__u64 namespace[2]; /* network namespace: device and inode */
	__u32 ifindex;
	__u32 layout; /* of the maps */
	__u32 queues;
	__u32 mask; /* bundles of a queue, less 1 */
	__u32 cores;
	__u32 targets;
	__u32 loops; /* neighbours' frames are told by their source addresses */
	__u32 virtual; /* time comes from takt_now, for tests */
};
const volatile struct about takt_about = {};
__u64 takt_now = 0;

struct vlan_tag {
	__be16 control;
	__be16 encapsulated;
};

/*
 * A service: where its packets go to. Address 0: any. Of a stream the address is the frame's destination (any: AVTP alone), the port is
 * the VLAN. User space has the same.
 */
struct service {
	__be32 address[4];
	__be16 port;
	__u8 protocol;
	__u8 version;
};

struct flow {
	__be32 source[4];
	__be32 destination[4];
	__be16 ports[2];
	__u32 protocol;
	__u8 version;
	bool group; /* of several hosts, by the frame's destination */
	bool avtp;
};

enum kind { KIND_NONE, KIND_CORE, KIND_REDIRECT, KIND_VXLAN };

/* A core or neighbour. User space has the same. */
struct target {
	__u32 kind;
	__u32 dead;
	__u32 number; /* the processor, or the interface that frames leave by */
	__u32 most; /* bytes of a frame, at most */
	__u8 to[ETH_ALEN]; /* addresses of the frame that leaves */
	__u8 from[ETH_ALEN];
	__u8 inner[ETH_ALEN]; /* VXLAN: destination of the frame inside */
	__u16 zero;
	__be32 source; /* VXLAN: addresses of the packet that leaves, and the network */
	__be32 destination;
	__be32 network;
	__u32 zero_too;
};

struct bundle {
	__u64 last_ns;
	__u64 last_number; /* of its last packet, by takt_sent */
	__u32 target; /* and 1; 0: none yet */
	__u32 moves;
};

/* What a core has let out of its queue, of one receive queue. Numbers by takt_sent. */
struct done {
	__u64 last;
	__u64 last_ns; /* not before it was */
	__u64 before; /* all at an instant ... */
	__u64 before_ns;
	__u64 earlier; /* ... and at one more than delta before that */
	__u64 packets;
	__u64 zero[2];
};

/* Goes with a frame through the queue. */
struct mark {
	__u64 number;
	__u32 cell;
	__u32 magic;
};
#define MAGIC 0x544b4c42

struct vxlan_header {
	struct ethhdr eth;
	struct iphdr ip;
	struct udphdr udp;
	__be32 flags;
	__be32 network;
} __attribute__((packed));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 512);
	__type(key, struct service);
	__type(value, __u32);
} takt_services SEC(".maps");

/* Queue by queue; user space sets the sizes of all that follow. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct bundle);
} takt_bundles SEC(".maps");

/* The target and 1 in the lower half, 0 for where it is; the upper half is user space's own. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} takt_wishes SEC(".maps");

/* Cores first. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct target);
} takt_targets SEC(".maps");

/* Packets of a queue for a core, at core * queues + queue. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u64);
} takt_sent SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct done);
} takt_done SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} takt_cpus SEC(".maps");

/* Source addresses of frames that neighbours send on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u64);
	__type(value, __u32);
} takt_neighbours SEC(".maps");

/* User space has the same. */
enum counter {
	COUNT_CORES, /* to cores */
	COUNT_NEIGHBOURS, /* to neighbours */
	COUNT_PASSED, /* of no service, or nothing to tell a flow by */
	COUNT_MOVES, /* bundles that went elsewhere */
	COUNT_HELD, /* that stayed for the sake of order */
	COUNT_FENCED, /* dropped: the neighbour is dead */
	COUNT_REFUSED, /* a wish that names no target */
	COUNT_TOO_LONG, /* dropped: longer than the way to the neighbour takes */
	COUNT_NO_ROOM, /* passed: no room before the frame for a mark or a header */
	COUNT_RETURNED, /* came from a neighbour */
	COUNT_OTHER_QUEUE, /* passed: of a queue that was not there at the beginning */
	COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} takt_counters SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *counter = bpf_map_lookup_elem(&takt_counters, &which);

	if (counter)
		*counter += 1;
}

static __always_inline __u64 now_ns(void)
{
	if (takt_about.virtual)
		return *(volatile __u64 *)&takt_now;
	return bpf_ktime_get_ns();
}

static __always_inline bool is_kept(__be16 type)
{
#pragma unroll
	for (unsigned int i = 0; i < sizeof(kept_types) / sizeof(kept_types[0]); i++) {
		if (type == bpf_htons(kept_types[i]))
			return true;
	}
	return bpf_ntohs(type) < ETH_P_802_3_MIN;
}

/* The flow of a frame that is a whole datagram or segment in plain IP, or of a stream without IP. */
static __always_inline bool dissect(void *data, void *end, struct flow *flow)
{
	struct ethhdr *eth = data;
	void *next = eth + 1;
	__u16 vlan = ANY_VLAN;
	__be16 protocol;
	__be16 *ports;

	if (next > end)
		return false;
	protocol = eth->h_proto;
	flow->group = eth->h_dest[0] & 1;

#pragma unroll
	for (int i = 0; i < MOST_VLAN_TAGS; i++) {
		struct vlan_tag *tag = next;

		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		next = tag + 1;
		if (next > end)
			return false;
		if (i == 0)
			vlan = bpf_ntohs(tag->control) & 0xfff;
		protocol = tag->encapsulated;
	}

	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = next;

		if ((void *)(ip + 1) > end)
			return false;
		if (ip->version != 4 || ip->ihl < 5)
			return false;
		if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
			return false;
		flow->version = 4;
		flow->protocol = ip->protocol;
		flow->source[0] = ip->saddr;
		flow->destination[0] = ip->daddr;
		ports = next + ip->ihl * 4;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = next;

		if ((void *)(ip + 1) > end)
			return false;
		if (ip->version != 6)
			return false;
		flow->version = 6;
		flow->protocol = ip->nexthdr;
		__builtin_memcpy(flow->source, &ip->saddr, 16);
		__builtin_memcpy(flow->destination, &ip->daddr, 16);
		ports = (void *)(ip + 1);
	} else {
		if (is_kept(protocol))
			return false;
		flow->version = VERSION_STREAM;
		flow->avtp = protocol == bpf_htons(ETH_P_AVTP);
		__builtin_memcpy(flow->destination, eth->h_dest, ETH_ALEN);
		flow->ports[1] = bpf_htons(vlan);
		return true;
	}
	if (flow->protocol != IPPROTO_UDP && flow->protocol != IPPROTO_TCP)
		return false;
	if ((void *)(ports + 2) > end)
		return false;
	flow->ports[0] = ports[0];
	flow->ports[1] = ports[1];
	return true;
}

/* By its destination and VLAN; any of both, of AVTP. */
static __always_inline bool stream_of_service(const struct flow *flow)
{
	struct service key = { .port = flow->ports[1], .version = VERSION_STREAM };

	__builtin_memcpy(key.address, flow->destination, sizeof(key.address));
	if (bpf_map_lookup_elem(&takt_services, &key))
		return true;
	key.port = bpf_htons(ANY_VLAN);
	if (bpf_map_lookup_elem(&takt_services, &key))
		return true;
	if (!flow->avtp)
		return false;
	__builtin_memset(key.address, 0, sizeof(key.address));
	if (bpf_map_lookup_elem(&takt_services, &key))
		return true;
	key.port = flow->ports[1];
	return bpf_map_lookup_elem(&takt_services, &key) != NULL;
}

static __always_inline bool of_service(const struct flow *flow)
{
	struct service key = {
		.port = flow->ports[1],
		.protocol = flow->protocol,
		.version = flow->version,
	};

	__builtin_memcpy(key.address, flow->destination, sizeof(key.address));
	if (bpf_map_lookup_elem(&takt_services, &key))
		return true;
	/* What is for several hosts is no neighbour's to answer. */
	if (flow->group)
		return false;
	__builtin_memset(key.address, 0, sizeof(key.address));
	return bpf_map_lookup_elem(&takt_services, &key) != NULL;
}

/* One round of MurmurHash3 (Austin Appleby, public domain). */
static __always_inline __u32 stir(__u32 hash, __u32 word)
{
	word *= 0xcc9e2d51;
	word = word << 15 | word >> 17;
	hash ^= word * 0x1b873593;
	hash = hash << 13 | hash >> 19;
	return hash * 5 + 0xe6546b64;
}

/* User space has the same. */
static __always_inline __u32 hash_of(const struct flow *flow)
{
	__u32 hash = flow->protocol;

	hash = stir(hash, bpf_ntohl(flow->source[0]));
	hash = stir(hash, bpf_ntohl(flow->destination[0]));
	if (flow->version == VERSION_STREAM)
		hash = stir(hash, bpf_ntohl(flow->destination[1]));
	if (flow->version == 6) {
#pragma unroll
		for (int i = 1; i < 4; i++) {
			hash = stir(hash, bpf_ntohl(flow->source[i]));
			hash = stir(hash, bpf_ntohl(flow->destination[i]));
		}
	}
	hash = stir(hash, (__u32)bpf_ntohs(flow->ports[0]) << 16 | bpf_ntohs(flow->ports[1]));
	hash ^= hash >> 16;
	hash *= 0x85ebca6b;
	hash ^= hash >> 13;
	hash *= 0xc2b2ae35;
	return hash ^ hash >> 16;
}

static __always_inline struct target *target_at(__u32 number)
{
	struct target *target;

	if (number >= takt_about.targets)
		return NULL;
	target = bpf_map_lookup_elem(&takt_targets, &number);
	return target && *(volatile __u32 *)&target->kind != KIND_NONE ? target : NULL;
}

static __always_inline bool is_dead(const struct target *target)
{
	return *(volatile __u32 *)&target->dead != 0;
}

/* Whether the last packet that a core got of the bundle left its queue at least delta ago. */
static __always_inline bool is_done(const struct bundle *bundle, __u32 core, __u32 queue, __u64 now)
{
	__u32 cell = core * takt_about.queues + queue;
	volatile struct done *done = bpf_map_lookup_elem(&takt_done, &cell);
	__u64 number, at;

	if (!done)
		return false;
	/* The writer stores the times first. */
	number = done->last;
	at = done->last_ns;
	if (now > at && now - at > takt_about.delta_ns)
		return bundle->last_number <= number;
	number = done->before;
	at = done->before_ns;
	if (now > at && now - at > takt_about.delta_ns)
		return bundle->last_number <= number;
	return bundle->last_number <= done->earlier;
}

/* Where the packet of a bundle goes that comes now. */
static __always_inline __u32 steer(struct bundle *bundle, __u32 wish, __u32 queue, __u32 index,
				   __u64 now)
{
	__u32 current = bundle->target - 1;
	struct target *to = NULL;
	struct target *from;
	bool in_order;

	if (wish != 0 && wish != bundle->target) {
		to = target_at(wish - 1);
		if (!to)
			count(COUNT_REFUSED);
		else if (is_dead(to))
			to = NULL;
	}
	if (bundle->target == 0) {
		current = to ? wish - 1 : index % takt_about.cores;
		bundle->target = current + 1;
		return current;
	}
	from = target_at(current);
	if (!from)
		return NOWHERE;
	if (!to)
		return is_dead(from) ? NOWHERE : current;
	in_order = now > bundle->last_ns && now - bundle->last_ns > takt_about.delta_ns;
	if (in_order && current < takt_about.cores)
		in_order = is_done(bundle, current, queue, now);
	if (in_order) {
		bundle->target = wish;
		bundle->moves += 1;
		count(COUNT_MOVES);
		return wish - 1;
	}
	if (is_dead(from))
		return NOWHERE;
	count(COUNT_HELD);
	return current;
}

static __always_inline int to_core(struct xdp_md *ctx, struct target *target, __u32 core,
				   __u32 queue, struct bundle *bundle)
{
	__u32 cell = core * takt_about.queues + queue;
	__u64 *sent = bpf_map_lookup_elem(&takt_sent, &cell);
	struct mark *mark;
	int action;

	if (!sent || bpf_xdp_adjust_meta(ctx, -(int)sizeof(*mark))) {
		count(COUNT_NO_ROOM);
		return XDP_PASS;
	}
	mark = (void *)(long)ctx->data_meta;
	if ((void *)(mark + 1) > (void *)(long)ctx->data) {
		count(COUNT_NO_ROOM);
		return XDP_PASS;
	}
	mark->number = *sent + 1;
	mark->cell = cell;
	mark->magic = MAGIC;
	action = bpf_redirect_map(&takt_cpus, target->number, 0);
	if (action == XDP_REDIRECT) {
		*sent = mark->number;
		bundle->last_number = mark->number;
		count(COUNT_CORES);
	}
	return action;
}

/* Ones' complement sum of an IPv4 header without options (RFC 1071). */
static __always_inline __u16 checksum(const struct iphdr *ip)
{
	const __u16 *words = (const void *)ip;
	__u32 sum = 0;

#pragma unroll
	for (int i = 0; i < (int)sizeof(*ip) / 2; i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline int to_neighbour(struct xdp_md *ctx, struct target *target, __u32 hash,
					bool stream)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	__u32 length = end - data;
	/* Once: whoever writes the map changes nothing under way. */
	__u32 kind = *(volatile __u32 *)&target->kind;
	struct ethhdr *eth = data;
	struct vxlan_header *outer;
	struct iphdr ip = {
		.version = 4,
		.ihl = 5,
		.frag_off = bpf_htons(IP_DONT_FRAGMENT),
		.ttl = 64,
		.protocol = IPPROTO_UDP,
	};

	if ((void *)(eth + 1) > end)
		return XDP_PASS;
	if (kind == KIND_REDIRECT && !stream) {
		if (length > target->most)
			goto too_long;
		__builtin_memcpy(eth->h_dest, target->to, ETH_ALEN);
		__builtin_memcpy(eth->h_source, target->from, ETH_ALEN);
		count(COUNT_NEIGHBOURS);
		return bpf_redirect(target->number, 0);
	}
	if (kind != KIND_VXLAN) {
		count(COUNT_FENCED);
		return XDP_DROP;
	}
	if (length + sizeof(*outer) > target->most)
		goto too_long;
	if (!stream)
		__builtin_memcpy(eth->h_dest, target->inner, ETH_ALEN);
	if (bpf_xdp_adjust_head(ctx, -(int)sizeof(*outer))) {
		count(COUNT_NO_ROOM);
		return XDP_DROP;
	}
	outer = (void *)(long)ctx->data;
	end = (void *)(long)ctx->data_end;
	if ((void *)(outer + 1) > end)
		return XDP_DROP;
	__builtin_memset(outer, 0, sizeof(*outer));
	__builtin_memcpy(outer->eth.h_dest, target->to, ETH_ALEN);
	__builtin_memcpy(outer->eth.h_source, target->from, ETH_ALEN);
	outer->eth.h_proto = bpf_htons(ETH_P_IP);
	ip.tot_len = bpf_htons(length + sizeof(*outer) - sizeof(outer->eth));
	ip.saddr = target->source;
	ip.daddr = target->destination;
	ip.check = checksum(&ip);
	outer->ip = ip;
	/* RFC 7348, section 5: the port tells flows apart, the checksum is 0. */
	outer->udp.source = bpf_htons(49152 + (hash >> 16) % 16384);
	outer->udp.dest = bpf_htons(VXLAN_PORT);
	outer->udp.len = bpf_htons(length + sizeof(*outer) - sizeof(outer->eth) - sizeof(outer->ip));
	outer->flags = bpf_htonl(0x08000000);
	outer->network = target->network;
	count(COUNT_NEIGHBOURS);
	return bpf_redirect(target->number, 0);
too_long:
	count(COUNT_TOO_LONG);
	return XDP_DROP;
}

/* Whether a neighbour has sent the frame on: it goes to a core then, lest it goes round. */
static __always_inline bool of_neighbour(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data;
	struct ethhdr *eth = data;
	__u64 key = 0;

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return false;
	__builtin_memcpy(&key, eth->h_source, ETH_ALEN);
	return bpf_map_lookup_elem(&takt_neighbours, &key) != NULL;
}

SEC("xdp")
int takt_balance(struct xdp_md *ctx)
{
	__u32 queue = ctx->rx_queue_index;
	struct flow flow = {};
	struct bundle *bundle;
	struct target *target;
	__u32 hash, index, to;
	__u64 *wish;
	__u64 now;

	if (!dissect((void *)(long)ctx->data, (void *)(long)ctx->data_end, &flow) ||
	    !(flow.version == VERSION_STREAM ? stream_of_service(&flow) : of_service(&flow))) {
		count(COUNT_PASSED);
		return XDP_PASS;
	}
	if (queue >= takt_about.queues) {
		count(COUNT_OTHER_QUEUE);
		return XDP_PASS;
	}
	hash = hash_of(&flow);
	index = queue * (takt_about.mask + 1) + (hash & takt_about.mask);
	if (takt_about.loops && of_neighbour(ctx)) {
		struct bundle none = {};

		count(COUNT_RETURNED);
		to = index % takt_about.cores;
		target = target_at(to);
		return target ? to_core(ctx, target, to, queue, &none) : XDP_PASS;
	}
	bundle = bpf_map_lookup_elem(&takt_bundles, &index);
	wish = bpf_map_lookup_elem(&takt_wishes, &index);
	if (!bundle || !wish)
		return XDP_PASS;
	now = now_ns();
	to = steer(bundle, (__u32) * (volatile __u64 *)wish, queue, index, now);
	target = to == NOWHERE ? NULL : target_at(to);
	if (!target) {
		count(COUNT_FENCED);
		return XDP_DROP;
	}
	bundle->last_ns = now;
	if (to < takt_about.cores)
		return to_core(ctx, target, to, queue, bundle);
	return to_neighbour(ctx, target, hash, flow.version == VERSION_STREAM);
}

/* On the core, where frames leave its queue. */
SEC("xdp/cpumap")
int takt_arrive(struct xdp_md *ctx)
{
	struct mark *mark = (void *)(long)ctx->data_meta;
	volatile struct done *done;
	__u64 number, now;
	__u32 cell;

	if ((void *)(mark + 1) > (void *)(long)ctx->data || mark->magic != MAGIC)
		return XDP_PASS;
	number = mark->number;
	cell = mark->cell;
	done = bpf_map_lookup_elem(&takt_done, &cell);
	if (done) {
		now = now_ns();
		if (now > done->before_ns && now - done->before_ns > takt_about.delta_ns) {
			done->earlier = done->before;
			done->before_ns = now;
			done->before = done->last;
		}
		/* The time first: who sees the number sees no time before it. */
		done->last_ns = now;
		done->last = number;
		done->packets += 1;
	}
	/* Marks would keep the kernel from joining segments. */
	bpf_xdp_adjust_meta(ctx, sizeof(*mark));
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
