// SPDX-License-Identifier: Apache-2.0
/*
 * Hands UDP datagrams for Takt's addresses and ports to AF_XDP sockets and leaves everything else to
 * the kernel, also what it merely forwards to others that use the same port number.
 *
 * Not a firewall and not a parser of record: user space checks every frame again (length, checksum,
 * address). Fragments, IPv6 extension headers and more than two VLAN tags go to the kernel.
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
#define MOST_VLAN_TAGS 2

/* Ports of Takt on the interface at a time, and sockets of each on a queue; user space has the same numbers. */
#define MOST_PORTS 64
#define RINGS 2

struct vlan_tag {
	__be16 control;
	__be16 encapsulated;
};

/* Where a datagram goes: IPv4 addresses as IPv4-mapped ones (RFC 4291, section 2.5.5.2). */
struct endpoint {
	union {
		__u8 bytes[16];
		__be32 words[4];
	} address;
	__be16 port;
	__u16 zero;
};

/* The endpoints of Takt on this interface, and the number of the port that each belongs to. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct endpoint);
	__type(value, __u32);
} takt_endpoints SEC(".maps");

/*
 * The UDP ports of these endpoints, a bit for each, by the number that its two bytes are in memory: what is for another port,
 * as most of what is not Takt's, is passed on without the address and without a look into the table.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536 / 64);
	__type(key, __u32);
	__type(value, __u64);
} takt_ports SEC(".maps");

/*
 * The sockets for each port on each receive queue, from (queue * MOST_PORTS + port) * RINGS on: the port's own or, where
 * it has none on the queue, another's. The first is for best effort, the second for what is marked with a traffic class,
 * which so finds room however much else comes. User space sets the size.
 */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} takt_sockets SEC(".maps");

/* Frames handed to a socket (0) and passed to the kernel (1). */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} takt_counters SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *counter = bpf_map_lookup_elem(&takt_counters, &which);

	if (counter)
		*counter += 1;
}

static __always_inline bool is_open(__be16 port)
{
	__u32 word = port / 64;
	__u64 *bits = bpf_map_lookup_elem(&takt_ports, &word);

	return bits && *bits >> port % 64 & 1;
}

/*
 * Where the frame's datagram goes, and its class selector (RFC 2474, section 4.2.2.2); false when it is not a whole UDP
 * datagram in plain IP, or for a port of nobody here.
 */
static __always_inline bool destination(struct xdp_md *ctx, struct endpoint *endpoint, __u8 *class)
{
	void *data = (void *)(long)ctx->data;
	void *end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = data;
	struct udphdr *udp;
	void *next = eth + 1;
	__be16 protocol;

	if (next > end)
		return false;
	protocol = eth->h_proto;

#pragma unroll
	for (int i = 0; i < MOST_VLAN_TAGS; i++) {
		struct vlan_tag *tag = next;

		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		next = tag + 1;
		if (next > end)
			return false;
		protocol = tag->encapsulated;
	}

	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = next;

		if ((void *)(ip + 1) > end)
			return false;
		if (ip->ihl < 5 || ip->protocol != IPPROTO_UDP)
			return false;
		if (ip->frag_off & bpf_htons(IP_MORE_FRAGMENTS | IP_FRAGMENT_OFFSET))
			return false;
		udp = next + ip->ihl * 4;
		if ((void *)(udp + 1) > end)
			return false;
		endpoint->port = udp->dest;
		if (!is_open(endpoint->port))
			return false;
		endpoint->address.words[2] = bpf_htonl(0xffff);
		endpoint->address.words[3] = ip->daddr;
		*class = ip->tos >> 5;
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = next;

		if ((void *)(ip + 1) > end)
			return false;
		if (ip->nexthdr != IPPROTO_UDP)
			return false;
		udp = (void *)(ip + 1);
		if ((void *)(udp + 1) > end)
			return false;
		endpoint->port = udp->dest;
		if (!is_open(endpoint->port))
			return false;
		__builtin_memcpy(&endpoint->address, &ip->daddr, sizeof(endpoint->address));
		/* The upper half of the traffic class. */
		*class = ip->priority >> 1;
	} else {
		return false;
	}

	return true;
}

SEC("xdp.frags")
int takt_xdp(struct xdp_md *ctx)
{
	struct endpoint endpoint = {};
	__u8 class = 0;
	__u32 *port;

	if (destination(ctx, &endpoint, &class)) {
		port = bpf_map_lookup_elem(&takt_endpoints, &endpoint);
		if (port && *port < MOST_PORTS) {
			__u32 socket = (ctx->rx_queue_index * MOST_PORTS + *port) * RINGS + (class > 0);
			/* Where there is no socket the answer is the last argument. */
			int action = bpf_redirect_map(&takt_sockets, socket, XDP_PASS);

			count(action != XDP_REDIRECT);
			return action;
		}
	}
	count(1);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "Apache-2.0";
