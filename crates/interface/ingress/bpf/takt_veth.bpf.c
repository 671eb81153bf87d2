// SPDX-License-Identifier: Apache-2.0
/*
 * At the ingress of the host's end of a pod's veth: takes packets that have a launch time out of the kernel's path and hands
 * them to user space with it, see docs/decisions/0013; and those that have none, if that is wanted. The pod can neither see nor
 * remove these programs, but for the one at its own end. And at the egress of a link: takes what the kernel would send there.
 *
 * Not a parser of record: user space and the lane check every frame again.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/net_tstamp.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* `enum tcx_action_base` of Linux 6.6. */
#define TCX_NEXT -1
#define TCX_DROP 2

/* What `tstamp_type` says, from Linux 6.11 on (`enum skb_tstamp_type`). */
#define CLOCK_OF_ARRIVAL 0
#define CLOCK_MONOTONIC 1
#define CLOCK_TAI 2

/* `SOL_SOCKET` and `SO_TXTIME` (asm-generic/socket.h); clocks of the latter (linux/time.h). */
#define SOCKET_LEVEL 1
#define TXTIME_OPTION 61
#define CLOCK_ID_MONOTONIC 1
#define CLOCK_ID_TAI 11

/* Ethernet header; the first octets of IPv4 and IPv6. */
#define LINK_HEADER 14
#define IPV4_FRAGMENT (LINK_HEADER + 6)
#define FRAGMENT_OFFSET 0x1fff
#define IPV4_PROTOCOL (LINK_HEADER + 9)
#define IPV4_SOURCE (LINK_HEADER + 12)
#define IPV4_DESTINATION (LINK_HEADER + 16)
#define IPV6_NEXT_HEADER (LINK_HEADER + 6)
#define IPV6_SOURCE (LINK_HEADER + 8)
#define IPV6_DESTINATION (LINK_HEADER + 24)
#define IPV6_HEADER 40
/* From the beginning of a TCP header, and the bit of its SYN there. */
#define TCP_FLAGS 13
#define TCP_SYN 2
#define MOST_EXTENSIONS 8
/* UDP ports of VXLAN: RFC 7348, and what Linux had before. */
#define VXLAN_PORT 4789
#define FLANNEL_PORT 8472
/* From the beginning of a UDP header, and what PTP is sent to. */
#define UDP_DESTINATION 2
#define PTP_EVENT_PORT 319
#define PTP_GENERAL_PORT 320
/* After so long without that, whoever takes it hangs. */
#define HANGS 5000000000ull

/* Shares of the ring, of which the host's own users have the first ones. */
#define SHARES 256
#define HOST_SHARES 64
/* One that wants more has 4 fifths. */
#define SHARE_OF_FREE 4

/* A VLAN tag, which the kernel has taken out of the frame, and where it was: behind the addresses (IEEE 802.1Q, 9.3). */
#define TAG 4
#define ADDRESSES 12

/* Sizes of records, but for a tag: of most control messages, of a usual MTU, of a jumbo frame. User space takes any. */
#define SMALL 240
#define USUAL 2032
#define LARGE 9712

/* What came of times by CLOCK_REALTIME: places in `takt_realtimes`. */
enum realtime {
	CONVERTED,
	/* Not IP. */
	UNCONVERTED,
	REALTIMES,
};

/* Why a packet went which way: places in `takt_counters`. User space has the same order. */
enum counter {
	TAKEN,
	/* Passed: without a launch time. */
	UNTIMED,
	/* With a launch time, and passed on to the next program, which may be the guard. */
	SEGMENTED,
	TOO_LONG,
	RING_FULL,
	/* Without a launch time, and taken as well. */
	OTHER_TAKEN,
	/* The same, to be taken, and passed: segmented, tagged or too long, or nobody takes it. */
	OTHER_PASSED,
	/* The same, and dropped: the ring of those is full. */
	OTHER_FULL,
	COUNTERS,
};

/* Where a packet goes. */
struct towards {
	__u8 station[6];
	/* So that the structure has no holes. */
	__u8 zero[2];
	/* An IPv4 address is in the first four octets. */
	__u8 receiver[16];
};

/* What user space gets of a packet. */
struct record {
	/* By `clock`, nanoseconds. Without a launch time that is 0, and this says whose share of the ring it takes. */
	__u64 launch;
	/* Of the frame. */
	__u32 length;
	__u32 clock;
	__u8 frame[];
};

/* Packets for user space, which sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} takt_ring SEC(".maps");

/* Those without a launch time, which wait for nobody's sake there. User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 12);
} takt_others SEC(".maps");

/* Where the runtime does not send what has no launch time: from user space. Something went there: 1. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct towards);
	__type(value, __u8);
} takt_elsewhere SEC(".maps");

/* Whether TCP without a launch time is taken: from user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} takt_tcp SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} takt_counters SEC(".maps");

/* Packets that the guard has dropped. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} takt_guarded SEC(".maps");

/* By how much CLOCK_TAI is ahead of CLOCK_REALTIME, nanoseconds: from user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} takt_ahead SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REALTIMES);
	__type(key, __u32);
	__type(value, __u64);
} takt_realtimes SEC(".maps");

/* When what has no launch time has last got on, by the kernel's monotonic clock: from user space. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} takt_alive SEC(".maps");

/* Who sends by a link, in shares of the ring: octets that they have put into it, and that were taken out, which user space tells. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SHARES);
	__type(key, __u32);
	__type(value, __u64);
} takt_in SEC(".maps"), takt_out SEC(".maps");

/* The runtime's own sockets, by their cookies, whose datagrams pass as they are: from user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} takt_own SEC(".maps");

/* What user space counts, for those who ask; the programs do not read it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 32);
	__type(key, __u32);
	__type(value, __u64);
} takt_reader SEC(".maps");

static __always_inline void count(void *map, __u32 which)
{
	__u64 *counter = bpf_map_lookup_elem(map, &which);

	if (counter)
		*counter += 1;
}

/* Whether a packet is of TCP by what it says. */
static __always_inline bool says_tcp(struct __sk_buff *skb)
{
	__u32 at = LINK_HEADER + IPV6_HEADER;
	__u8 next = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, IPV4_PROTOCOL, &next, 1);
		return next == IPPROTO_TCP;
	}
	if (skb->protocol != bpf_htons(ETH_P_IPV6))
		return false;
	if (bpf_skb_load_bytes(skb, IPV6_NEXT_HEADER, &next, 1))
		return false;
	for (int i = 0; i < MOST_EXTENSIONS; i++) {
		/* Its kind of next header, and its length. */
		__u8 head[2] = {};

		switch (next) {
		case IPPROTO_HOPOPTS:
		case IPPROTO_ROUTING:
		case IPPROTO_FRAGMENT:
		case IPPROTO_DSTOPTS:
			break;
		default:
			return next == IPPROTO_TCP;
		}
		if (bpf_skb_load_bytes(skb, at, head, sizeof(head)))
			return false;
		at += next == IPPROTO_FRAGMENT ? 8 : (head[1] + 1) * 8;
		next = head[0];
	}
	return false;
}

/* Whether a UDP header is of a VXLAN, by the port that it is for. */
static __always_inline bool is_vxlan(struct __sk_buff *skb, __u32 at)
{
	__be16 port = 0;

	return !bpf_skb_load_bytes(skb, at + UDP_DESTINATION, &port, sizeof(port)) &&
	       (port == bpf_htons(VXLAN_PORT) || port == bpf_htons(FLANNEL_PORT));
}

/* Whether a packet may carry another one: IP within IP, GRE, ESP, VXLAN. */
static __always_inline bool may_be_tunnel(struct __sk_buff *skb)
{
	bool is_four = skb->protocol == bpf_htons(ETH_P_IP);
	__u32 at = LINK_HEADER + (is_four ? 20 : IPV6_HEADER);
	__u8 protocol = 0;

	if (!is_four && skb->protocol != bpf_htons(ETH_P_IPV6))
		return false;
	if (bpf_skb_load_bytes(skb, is_four ? IPV4_PROTOCOL : IPV6_NEXT_HEADER, &protocol, 1))
		return false;
	switch (protocol) {
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
	case IPPROTO_GRE:
	case IPPROTO_ESP:
		return true;
	case IPPROTO_UDP:
		return is_vxlan(skb, at);
	default:
		return false;
	}
}

/*
 * TCP has the times of its own pacing in the same field. Tunnels of the sender's own put headers before it, and leave it its socket, which is
 * no full one while a connection opens or has ended. Where that is gone, what a tunnel may carry is taken for TCP.
 */
static __always_inline bool is_tcp(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;

	if (says_tcp(skb))
		return true;
	if (!sk)
		return may_be_tunnel(skb);
	sk = bpf_sk_fullsock(sk);
	return !sk || sk->protocol == IPPROTO_TCP;
}

static __always_inline bool has_launch_time(struct __sk_buff *skb)
{
	/* The type is read first: without that the kernel tells programs at ingress of no time of delivery. */
	if (skb->tstamp_type == CLOCK_OF_ARRIVAL || !skb->tstamp)
		return false;
	return !is_tcp(skb);
}

/* Hands a packet over in a record with room for so many octets, a constant. */
static __always_inline enum counter hand_over(struct __sk_buff *skb, void *ring, __u32 share, const __u32 room)
{
	struct record *record = bpf_ringbuf_reserve(ring, sizeof(*record) + room + TAG, 0);
	bool timed = ring == &takt_ring;
	__u64 length = skb->len;

	if (!record)
		return RING_FULL;
	record->launch = timed ? skb->tstamp : share;
	record->clock = timed ? skb->tstamp_type : CLOCK_OF_ARRIVAL;
	record->length = length;
	if (length > room)
		goto discard;
	if (skb->vlan_present) {
		__be16 tag[TAG / 2] = { skb->vlan_proto, bpf_htons(skb->vlan_tci) };

		record->length += TAG;
		if (bpf_skb_load_bytes(skb, 0, record->frame, ADDRESSES))
			goto discard;
		__builtin_memcpy(record->frame + ADDRESSES, tag, TAG);
		if (length <= ADDRESSES)
			goto discard;
		length -= ADDRESSES;
		/* Two comparisons, as the verifier wants them: the compiler would make one of them. */
		asm volatile("" : "+r"(length));
		if (length == 0 || length > room - ADDRESSES ||
		    bpf_skb_load_bytes(skb, ADDRESSES, record->frame + ADDRESSES + TAG, length))
			goto discard;
		goto submit;
	}
	asm volatile("" : "+r"(length));
	if (length == 0 || bpf_skb_load_bytes(skb, 0, record->frame, length))
		goto discard;
submit:
	bpf_ringbuf_submit(record, 0);
	return TAKEN;
discard:
	bpf_ringbuf_discard(record, 0);
	return TOO_LONG;
}

/* Whether what has no launch time is taken as well. */
volatile const __u32 takt_all;

/* Whether what has a launch time and is not taken is dropped. */
volatile const __u32 takt_required;

/* Whether a TCP segment that begins so far into the frame may be the runtime's: none that opens a connection, so that the kernel's
 * connection tracking knows it. */
static __always_inline bool may_be_tcp(struct __sk_buff *skb, __u32 at)
{
	__u32 only = 0, *taken = bpf_map_lookup_elem(&takt_tcp, &only);
	__u8 flags;

	if (!taken || !*taken || bpf_skb_load_bytes(skb, at + TCP_FLAGS, &flags, 1))
		return false;
	return !(flags & TCP_SYN);
}

/* Whether whoever takes what has no launch time gets on. It is the kernel's otherwise: a host would not be reached any more. */
static __always_inline bool is_alive(void)
{
	__u32 only = 0;
	__u64 *alive = bpf_map_lookup_elem(&takt_alive, &only);

	return alive && bpf_ktime_get_ns() - *alive < HANGS;
}

/* Whether a packet without a launch time may be the runtime's: IP to one station, which is not known to be elsewhere. What leaves by a
 * link is of interest by its station alone, which may be a group, and the kernel has seen its connection. */
static __always_inline bool may_be_ours(struct __sk_buff *skb, bool by_link)
{
	struct towards towards = {};
	__u32 header = IPV6_HEADER;
	__u8 next = 0, *used;

	if (bpf_skb_load_bytes(skb, 0, towards.station, sizeof(towards.station)))
		return false;
	if (!by_link && towards.station[0] & 1)
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		__u8 first;

		if (bpf_skb_load_bytes(skb, IPV4_DESTINATION, towards.receiver, 4) ||
		    bpf_skb_load_bytes(skb, IPV4_PROTOCOL, &next, 1) || bpf_skb_load_bytes(skb, LINK_HEADER, &first, 1))
			return false;
		header = (first & 15) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, IPV6_DESTINATION, towards.receiver, 16) ||
		    bpf_skb_load_bytes(skb, IPV6_NEXT_HEADER, &next, 1))
			return false;
		/* Neighbour discovery and extension headers are the kernel's. */
		if (next != IPPROTO_TCP && next != IPPROTO_UDP)
			return false;
	} else {
		return false;
	}
	if (by_link)
		__builtin_memset(towards.receiver, 0, sizeof(towards.receiver));
	else if (next == IPPROTO_TCP && !may_be_tcp(skb, LINK_HEADER + header))
		return false;
	used = bpf_map_lookup_elem(&takt_elsewhere, &towards);
	if (used)
		*used = 1;
	return !used;
}

static __always_inline bool is_tagged(struct __sk_buff *skb)
{
	return skb->vlan_present || skb->protocol == bpf_htons(ETH_P_8021Q) ||
	       skb->protocol == bpf_htons(ETH_P_8021AD);
}

/* Hands over by a ring, or says why not. */
static __always_inline enum counter take(struct __sk_buff *skb, void *ring, __u32 share)
{
	if (skb->gso_size)
		return SEGMENTED;
	if (skb->len <= SMALL)
		return hand_over(skb, ring, share, SMALL);
	if (skb->len <= USUAL)
		return hand_over(skb, ring, share, USUAL);
	return hand_over(skb, ring, share, LARGE);
}

/* Takes what has no launch time; false: it passes. */
static __always_inline bool take_other(struct __sk_buff *skb, __u32 share)
{
	__u64 *in;

	if (is_tagged(skb)) {
		count(&takt_counters, OTHER_PASSED);
		return false;
	}
	switch (take(skb, &takt_others, share)) {
	case TAKEN:
		count(&takt_counters, OTHER_TAKEN);
		in = bpf_map_lookup_elem(&takt_in, &share);
		if (in)
			__sync_fetch_and_add(in, skb->len);
		return true;
	case RING_FULL:
		/* As any full queue of a link does: past it, it would be beside the schedule. */
		count(&takt_counters, OTHER_FULL);
		return true;
	default:
		count(&takt_counters, OTHER_PASSED);
		return false;
	}
}

/* The mark of what is given back without ever having had a launch time, by which it is not taken again. None from the pod's own
 * namespace comes across its veth. */
#define RETURNED 0x74616b74

/* Takes what has a launch time, and what has none if that is wanted. */
SEC("classifier")
int takt_take(struct __sk_buff *skb)
{
	enum counter result;

	if (takt_all && skb->mark == RETURNED) {
		skb->mark = 0;
		return TCX_NEXT;
	}
	if (has_launch_time(skb)) {
		result = take(skb, &takt_ring, 0);
		count(&takt_counters, result);
		if (result == TAKEN)
			return TCX_DROP;
		/* Queues behind us take a time for one by their own clock, and drop what is far ahead of that. The guard looks at it first. */
		if (!takt_required)
			bpf_skb_set_tstamp(skb, 0, CLOCK_OF_ARRIVAL);
		return TCX_NEXT;
	}
	if (!takt_all || !may_be_ours(skb, false)) {
		count(&takt_counters, UNTIMED);
		return TCX_NEXT;
	}
	if (!is_alive()) {
		count(&takt_counters, OTHER_PASSED);
		return TCX_NEXT;
	}
	return take_other(skb, 0) ? TCX_DROP : TCX_NEXT;
}

/* Lets nothing with a launch time pass. Behind the other one, and there without it. */
SEC("classifier")
int takt_guard(struct __sk_buff *skb)
{
	if (!has_launch_time(skb))
		return TCX_NEXT;
	count(&takt_guarded, 0);
	return TCX_DROP;
}

/*
 * At the egress of the pod's own end: the veth clears times by CLOCK_REALTIME, as it takes them for times of arrival. Those by
 * CLOCK_TAI pass.
 */
SEC("classifier")
int takt_realtime(struct __sk_buff *skb)
{
	__u32 only = 0;
	__u64 *ahead;

	if (skb->tstamp_type != CLOCK_OF_ARRIVAL || !skb->tstamp)
		return TCX_NEXT;
	ahead = bpf_map_lookup_elem(&takt_ahead, &only);
	if (ahead && !bpf_skb_set_tstamp(skb, skb->tstamp + *ahead, CLOCK_TAI)) {
		count(&takt_realtimes, CONVERTED);
		return TCX_NEXT;
	}
	count(&takt_realtimes, UNCONVERTED);
	return takt_required ? TCX_DROP : TCX_NEXT;
}

/* Run by user space on a frame that is to go the kernel's way after all: as if the interface had received it. */
volatile const __u32 takt_device;

SEC("classifier")
int takt_return(struct __sk_buff *skb)
{
	return bpf_clone_redirect(skb, takt_device, BPF_F_INGRESS);
}

/* The same of a frame that had no launch time, while those are taken. */
SEC("classifier")
int takt_return_other(struct __sk_buff *skb)
{
	skb->mark = RETURNED;
	return bpf_clone_redirect(skb, takt_device, BPF_F_INGRESS);
}

/* The source of an IP packet behind a link header that begins there, 16 octets of which IPv4 takes the first four. */
static __always_inline bool source_of(struct __sk_buff *skb, __u32 at, void *address)
{
	__be16 kind = 0;

	bpf_skb_load_bytes(skb, at + LINK_HEADER - sizeof(kind), &kind, sizeof(kind));
	if (kind == bpf_htons(ETH_P_IP))
		return !bpf_skb_load_bytes(skb, at + IPV4_SOURCE, address, 4);
	return kind == bpf_htons(ETH_P_IPV6) && !bpf_skb_load_bytes(skb, at + IPV6_SOURCE, address, 16);
}

/*
 * Whether the runtime sends a packet that leaves by a link, by a socket of its own. Addresses and ports do not tell that: tunnels of the kernel
 * put this host's address on what a pod sends, and leave it the pod's socket.
 */
static __always_inline bool is_own(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb);

	return cookie && bpf_map_lookup_elem(&takt_own, &cookie);
}

/* The mark of what one program below has carried to the other one, with the share that it takes of the ring. */
#define CARRIED 0x74616c00
#define OF_SHARE 0xff
#define UDP_HEADER 8
#define VXLAN_HEADER 8

/* A source of packets: where they came into this host, or which of its users has sent them; and their address. */
struct source {
	__u32 ifindex;
	__u32 uid;
	__u32 address[4];
};

/*
 * Whether a tunnel of this host carries a packet, which leaves nothing of where that came in: its source is the one within then. Later
 * fragments do not tell, and are none of the host's own.
 */
static __always_inline bool is_within_tunnel(struct __sk_buff *skb, struct source *source)
{
	__u32 at = LINK_HEADER + 20;
	__be16 part = 0;
	__u8 protocol = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, IPV4_PROTOCOL, &protocol, 1);
		bpf_skb_load_bytes(skb, IPV4_FRAGMENT, &part, sizeof(part));
	} else {
		bpf_skb_load_bytes(skb, IPV6_NEXT_HEADER, &protocol, 1);
		at = LINK_HEADER + IPV6_HEADER;
	}
	if (protocol != IPPROTO_UDP)
		return false;
	if (part & bpf_htons(FRAGMENT_OFFSET))
		return true;
	if (!is_vxlan(skb, at))
		return false;
	__builtin_memset(source->address, 0, sizeof(source->address));
	source_of(skb, at + UDP_HEADER + VXLAN_HEADER, source->address);
	return true;
}

/* Whose share of the ring a packet takes: by that, one that floods the link leaves room to others. Within a tunnel the sender's. */
static __always_inline __u32 share_of(struct __sk_buff *skb)
{
	struct source source = {};
	__u32 hash = 0x9e3779b9;
	bool of_host = false;

	source_of(skb, 0, source.address);
	if (skb->ingress_ifindex) {
		source.ifindex = skb->ingress_ifindex;
	} else if (!is_within_tunnel(skb, &source)) {
		source.uid = bpf_get_socket_uid(skb);
		of_host = true;
	}
	/* The octets in which neighbours' addresses differ are the highest ones here. */
	for (unsigned int i = 0; i < sizeof(source) / sizeof(__u32); i++) {
		hash = (hash ^ ((__u32 *)&source)[i]) * 0x85ebca6b;
		hash ^= hash >> 16;
	}
	if (of_host)
		return hash % HOST_SHARES;
	return HOST_SHARES + hash % (SHARES - HOST_SHARES);
}

/*
 * Whether there is room in the ring for a share: in proportion to what is free, so that all that want more get the same (the dynamic
 * thresholds of switches with shared memory, Choudhury and Hahne, 1998). The last quarter is the host's own.
 */
static __always_inline bool has_room(struct __sk_buff *skb, __u32 share)
{
	__u64 size = bpf_ringbuf_query(&takt_others, BPF_RB_RING_SIZE);
	__u64 waiting = bpf_ringbuf_query(&takt_others, BPF_RB_AVAIL_DATA);
	__u64 *in = bpf_map_lookup_elem(&takt_in, &share), *out = bpf_map_lookup_elem(&takt_out, &share);
	__u64 free = size > waiting ? size - waiting : 0, used;

	if (!in || !out)
		return false;
	if (share >= HOST_SHARES)
		free = free > size / 4 ? free - size / 4 : 0;
	used = *in - *out;
	return used + skb->len <= SHARE_OF_FREE * free;
}

/*
 * Whether a packet is of the host's clock: PTP over UDP (IEEE 1588, annexes C and D), which is stamped where the kernel itself sends it. Of a
 * socket of the host's root alone, so that nobody else gets past the gates by these ports.
 */
static __always_inline bool is_clock(struct __sk_buff *skb)
{
	__u32 at = LINK_HEADER + IPV6_HEADER;
	__u8 first = 0, protocol = 0;
	__be16 part = 0, port = 0;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		bpf_skb_load_bytes(skb, LINK_HEADER, &first, 1);
		bpf_skb_load_bytes(skb, IPV4_PROTOCOL, &protocol, 1);
		bpf_skb_load_bytes(skb, IPV4_FRAGMENT, &part, sizeof(part));
		at = LINK_HEADER + (first & 15) * 4;
	} else {
		bpf_skb_load_bytes(skb, IPV6_NEXT_HEADER, &protocol, 1);
	}
	if (protocol != IPPROTO_UDP || part & bpf_htons(FRAGMENT_OFFSET))
		return false;
	if (bpf_skb_load_bytes(skb, at + UDP_DESTINATION, &port, sizeof(port)))
		return false;
	if (port != bpf_htons(PTP_EVENT_PORT) && port != bpf_htons(PTP_GENERAL_PORT))
		return false;
	/* Without a socket the user is one that nobody is. */
	return !skb->ingress_ifindex && skb->sk && !bpf_get_socket_uid(skb);
}

/* The link's address, and the end of the pair of veths that leads to the second program. */
volatile const __u8 takt_address[6];
volatile const __u32 takt_carrier;

/*
 * At the egress of a link, behind routes, tunnels, netfilter and translation: carries what may be the runtime's to the other program, by a
 * pair of veths that makes single packets of it, with checksums. The runtime's own sockets of packets have the mark of what is given back.
 */
SEC("classifier")
int takt_uplink(struct __sk_buff *skb)
{
	__u8 source[6];

	if (skb->mark == RETURNED) {
		skb->mark = 0;
		return TCX_NEXT;
	}
	if (is_own(skb))
		return TCX_NEXT;
	if (bpf_skb_load_bytes(skb, sizeof(source), source, sizeof(source)))
		return TCX_NEXT;
	for (int i = 0; i < 6; i++) {
		if (source[i] != takt_address[i]) {
			/* A device on top of this one, or a port of its bridge. */
			count(&takt_counters, OTHER_PASSED);
			return TCX_NEXT;
		}
	}
	if (is_tagged(skb)) {
		count(&takt_counters, OTHER_PASSED);
		return TCX_NEXT;
	}
	if (!may_be_ours(skb, true) || is_clock(skb)) {
		count(&takt_counters, UNTIMED);
		return TCX_NEXT;
	}
	if (!is_alive()) {
		count(&takt_counters, OTHER_PASSED);
		return TCX_NEXT;
	}
	skb->mark = CARRIED | share_of(skb);
	return bpf_redirect(takt_carrier, 0);
}

/* At the ingress of that pair's other end. */
SEC("classifier")
int takt_carried(struct __sk_buff *skb)
{
	__u32 share = skb->mark & OF_SHARE;

	/* The pair has no packets of its own, whoever may have given it addresses. */
	if ((skb->mark & ~OF_SHARE) != CARRIED)
		return TCX_DROP;
	if (!has_room(skb, share)) {
		count(&takt_counters, OTHER_FULL);
		return TCX_DROP;
	}
	if (take_other(skb, share))
		return TCX_DROP;
	skb->mark = RETURNED;
	return bpf_redirect(takt_device, 0);
}

/* Run by user space on a frame that is to leave by the link after all. */
SEC("classifier")
int takt_return_uplink(struct __sk_buff *skb)
{
	skb->mark = RETURNED;
	return bpf_clone_redirect(skb, takt_device, 0);
}

/*
 * In the pod's cgroup, at setsockopt(2): who wants times by CLOCK_TAI gets CLOCK_MONOTONIC, for which the kernel asks no capability.
 * The kernel does not look at the times themselves, and user space knows those of TAI by their size.
 */
SEC("cgroup/setsockopt")
int takt_clock(struct bpf_sockopt *option)
{
	struct sock_txtime *wanted = option->optval;

	if (option->level == SOCKET_LEVEL && option->optname == TXTIME_OPTION && (void *)(wanted + 1) <= option->optval_end &&
	    wanted->clockid == CLOCK_ID_TAI)
		wanted->clockid = CLOCK_ID_MONOTONIC;
	else
		/* As the program has it, also where that is longer than what is here. */
		option->optlen = 0;
	return 1;
}

/* Run by user space: whether the kernel tells the times of CLOCK_TAI apart. */
SEC("classifier")
int takt_probe(struct __sk_buff *skb)
{
	return bpf_skb_set_tstamp(skb, 1, CLOCK_TAI);
}

char LICENSE[] SEC("license") = "Apache-2.0";
