// SPDX-License-Identifier: Apache-2.0
/*
 * At the egress of a device: puts a trailer with the time and a number behind the IP packets of flows that were named. IP says
 * how long a packet is, so whoever receives it cuts the trailer off; see docs/reference/wire-format.md.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* `enum tcx_action_base` of Linux 6.6. */
#define TCX_NEXT -1

#define LINK_HEADER 14
#define IPV4_HEADER 20
#define IPV6_HEADER 40
#define FRAGMENT_HEADER 8
#define MOST_RULES 16
#define MOST_FLOWS 65536

/* "TkS1". */
#define MAGIC 0x546b5331
#define TRAILER 18

/* What became of packets of these flows: places in `takt_counters`. User space has the same order. */
enum counter {
	STAMPED,
	/* The device or the kernel cuts them into several. */
	SEGMENTED,
	FRAGMENTED,
	/* With a trailer they were longer than the device's MTU. */
	TOO_LONG,
	/* Something is behind the IP packet already. */
	PADDED,
	/* No memory, for instance. */
	FAILED,
	/* Of a protocol that is sealed to the end of the frame: see `sealed`. */
	SEALED,
	COUNTERS,
};

/* What a rule is about. User space has the same bits and the same layout. */
enum given {
	GIVEN_PROTOCOL = 1,
	GIVEN_SOURCE = 2,
	GIVEN_DESTINATION = 4,
	GIVEN_SOURCE_PORT = 8,
	GIVEN_DESTINATION_PORT = 16,
};

/* IPv4 addresses as those of IPv6 that they are mapped to (RFC 4291, section 2.5.5.2). */
struct flow {
	__u32 source[4];
	__u32 destination[4];
	__be16 ports[2];
	__u8 protocol;
	/* In a rule: `enum given`. */
	__u8 given;
	__u8 padding[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MOST_RULES);
	__type(key, __u32);
	__type(value, struct flow);
} takt_rules SEC(".maps");

/* The number that the next packet of a flow gets. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MOST_FLOWS);
	__type(key, struct flow);
	__type(value, __u32);
} takt_numbers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} takt_counters SEC(".maps");

/* Rules that are in force. */
volatile const __u32 takt_rule_count;
/* Bytes of the longest frame. */
volatile const __u32 takt_longest;

static __always_inline void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&takt_counters, &what);

	if (counter)
		*counter += 1;
}

static __always_inline bool same(const __u32 *one, const __u32 *other)
{
	return one[0] == other[0] && one[1] == other[1] && one[2] == other[2] && one[3] == other[3];
}

static __always_inline bool wanted(const struct flow *flow)
{
	for (__u32 at = 0; at < MOST_RULES && at < takt_rule_count; at++) {
		__u32 key = at;
		const struct flow *rule = bpf_map_lookup_elem(&takt_rules, &key);

		if (!rule)
			break;
		if ((rule->given & GIVEN_PROTOCOL) && rule->protocol != flow->protocol)
			continue;
		if ((rule->given & GIVEN_SOURCE) && !same(rule->source, flow->source))
			continue;
		if ((rule->given & GIVEN_DESTINATION) && !same(rule->destination, flow->destination))
			continue;
		if ((rule->given & GIVEN_SOURCE_PORT) && rule->ports[0] != flow->ports[0])
			continue;
		if ((rule->given & GIVEN_DESTINATION_PORT) && rule->ports[1] != flow->ports[1])
			continue;
		return true;
	}
	return false;
}

/* Reads flow and length of an IP packet. 0: it is none; less: it is a fragment. */
static __always_inline int read(struct __sk_buff *skb, struct flow *flow)
{
	__u8 header[IPV6_HEADER];
	__u32 ports = LINK_HEADER;
	bool fragment = false, later = false;
	int length;

	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		if (bpf_skb_load_bytes(skb, LINK_HEADER, header, IPV4_HEADER))
			return 0;
		flow->source[2] = flow->destination[2] = bpf_htonl(0xffff);
		__builtin_memcpy(&flow->source[3], header + 12, 4);
		__builtin_memcpy(&flow->destination[3], header + 16, 4);
		flow->protocol = header[9];
		length = header[2] << 8 | header[3];
		/* More fragments, or a later one. */
		fragment = (header[6] & 0x3f) || header[7];
		later = (header[6] & 0x1f) || header[7];
		ports += (header[0] & 15) * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, LINK_HEADER, header, IPV6_HEADER))
			return 0;
		__builtin_memcpy(flow->source, header + 8, 16);
		__builtin_memcpy(flow->destination, header + 24, 16);
		flow->protocol = header[6];
		length = header[4] << 8 | header[5];
		/* Of a jumbogram (RFC 2675) the length is elsewhere. */
		if (!length)
			return 0;
		length += IPV6_HEADER;
		ports += IPV6_HEADER;
		fragment = flow->protocol == IPPROTO_FRAGMENT;
		if (fragment) {
			if (bpf_skb_load_bytes(skb, ports, header, FRAGMENT_HEADER))
				return 0;
			flow->protocol = header[0];
			later = header[2] || (header[3] & 0xf8);
			ports += FRAGMENT_HEADER;
		}
	} else {
		return 0;
	}
	/* Ports are in the first one. */
	if (later)
		return -1;
	switch (flow->protocol) {
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_SCTP:
	case IPPROTO_DCCP:
		if (bpf_skb_load_bytes(skb, ports, flow->ports, sizeof(flow->ports)))
			return 0;
	}
	return fragment ? -1 : length;
}

/*
 * SCTP's CRC32c and, by devices that encrypt, ESP's check value are made after this, over all that is behind the header: they would
 * be over the trailer too, which the receiver cuts off.
 */
static __always_inline bool sealed(struct __sk_buff *skb, const struct flow *flow)
{
	__u32 at = LINK_HEADER + IPV6_HEADER;
	__u8 protocol = flow->protocol, header[2];

	/* Extension headers of IPv6 (RFC 8200, section 4.1). */
	for (int headers = 0; headers < 8 && skb->protocol == bpf_htons(ETH_P_IPV6); headers++) {
		if (protocol != IPPROTO_HOPOPTS && protocol != IPPROTO_ROUTING && protocol != IPPROTO_DSTOPTS)
			break;
		if (bpf_skb_load_bytes(skb, at, header, sizeof(header)))
			break;
		protocol = header[0];
		at += (header[1] + 1) * 8;
	}
	return protocol == IPPROTO_SCTP || protocol == IPPROTO_ESP;
}

/* The next number of a flow. */
static __always_inline bool number(const struct flow *flow, __u32 *next)
{
	__u32 *known = bpf_map_lookup_elem(&takt_numbers, flow);

	if (!known) {
		__u32 zero = 0;

		/* Another processor may be faster. */
		bpf_map_update_elem(&takt_numbers, flow, &zero, BPF_NOEXIST);
		known = bpf_map_lookup_elem(&takt_numbers, flow);
		if (!known)
			return false;
	}
	*next = __sync_fetch_and_add(known, 1);
	return true;
}

SEC("classifier")
int takt_stamp(struct __sk_buff *skb)
{
	/* In words, as a checksum adds them. */
	__u16 trailer[TRAILER / 2];
	struct flow flow = {};
	__u32 magic = bpf_htonl(MAGIC), end = skb->len, sum = 0, next;
	__u64 now;
	int length = read(skb, &flow);

	if (!length || !wanted(&flow))
		return TCX_NEXT;
	if (length < 0) {
		count(FRAGMENTED);
		return TCX_NEXT;
	}
	if (sealed(skb, &flow)) {
		count(SEALED);
		return TCX_NEXT;
	}
	if (skb->gso_size) {
		count(SEGMENTED);
		return TCX_NEXT;
	}
	if (end != LINK_HEADER + (__u32)length) {
		count(PADDED);
		return TCX_NEXT;
	}
	if (end + TRAILER > takt_longest) {
		count(TOO_LONG);
		return TCX_NEXT;
	}
	if (!number(&flow, &next) || bpf_skb_change_tail(skb, end + TRAILER, 0)) {
		count(FAILED);
		return TCX_NEXT;
	}
	next = bpf_htonl(next);
	now = bpf_cpu_to_be64(bpf_ktime_get_tai_ns());
	__builtin_memcpy(trailer, &magic, 4);
	__builtin_memcpy(trailer + 2, &next, 4);
	__builtin_memcpy(trailer + 4, &now, 8);
	/* A last word with which all of them add up to nothing: checksums over what is in front are right with the trailer, too. */
#pragma unroll
	for (int at = 0; at < TRAILER / 2 - 1; at++)
		sum += trailer[at];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	trailer[TRAILER / 2 - 1] = ~sum;
	count(bpf_skb_store_bytes(skb, end, trailer, TRAILER, 0) ? FAILED : STAMPED);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Apache-2.0";
