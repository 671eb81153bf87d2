/* Packet sockets: `raw SOURCE DESTINATION STATION`, the last being the destination's hardware address. */
#include "common.h"

#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <netpacket/packet.h>
#include <poll.h>
#include <sys/ioctl.h>

static uint16_t checksum(const void *bytes, size_t length)
{
	const uint16_t *word = bytes;
	uint32_t sum = 0;
	for (; length > 1; length -= 2)
		sum += *word++;
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

struct packet {
	struct iphdr ip;
	struct udphdr udp;
	int64_t launch;
	char text[8];
} __attribute__((packed));

static struct packet packet(const char *source, const char *destination, int64_t launch, const char *text)
{
	struct packet packet = { .launch = launch };
	strncpy(packet.text, text, sizeof(packet.text) - 1);
	packet.ip = (struct iphdr){ .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP,
				    .tot_len = htons(sizeof(packet)), .saddr = inet_addr(source),
				    .daddr = inet_addr(destination) };
	packet.ip.check = checksum(&packet.ip, sizeof(packet.ip));
	packet.udp = (struct udphdr){ .source = htons(1234), .dest = htons(PORT),
				      .len = htons(sizeof(packet) - sizeof(packet.ip)) };
	return packet;
}

int main(int count, char **arguments)
{
	CHECK(count == 4);
	const char *source = arguments[1], *destination = arguments[2];
	struct ether_header link = { .ether_type = htons(ETHERTYPE_IP) };
	CHECK(sscanf(arguments[3], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &link.ether_dhost[0], &link.ether_dhost[1],
		     &link.ether_dhost[2], &link.ether_dhost[3], &link.ether_dhost[4], &link.ether_dhost[5]) == 6);
	int interface = if_nametoindex("eth0");
	CHECK(interface > 0);
	struct ifreq request = { .ifr_name = "eth0" };

	int raw = socket(AF_PACKET, SOCK_RAW, 0);
	CHECK(raw >= 0);
	CHECK(ioctl(raw, SIOCGIFHWADDR, &request) == 0);
	memcpy(link.ether_shost, request.ifr_hwaddr.sa_data, 6);
	set_txtime(raw, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	int stamps = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
	CHECK(setsockopt(raw, SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof(stamps)) == 0);
	struct sockaddr_ll bound = { .sll_family = AF_PACKET, .sll_ifindex = interface,
				     .sll_protocol = htons(ETHERTYPE_IP) };
	CHECK(bind(raw, (struct sockaddr *)&bound, sizeof(bound)) == 0);

	int64_t launch = now_by(CLOCK_TAI) + 5 * MS;
	struct packet content = packet(source, destination, launch, "frame");
	struct timed timed;
	fill_timed(&timed, NULL, launch, launch, &content, sizeof(content));
	timed.parts[0] = (struct iovec){ &link, sizeof(link) };
	CHECK(sendmsg(raw, &timed.header, 0) == sizeof(link) + sizeof(content));
	struct pollfd entry = { .fd = raw, .events = 0 };
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
	struct told told;
	CHECK(read_error(raw, &told) && told.stamped);
	CHECK(told.length == sizeof(link) + sizeof(content));
	CHECK(memcmp(told.packet, &link, sizeof(link)) == 0);
	CHECK(memcmp(told.packet + sizeof(link), &content, sizeof(content)) == 0);

	int half = socket(AF_PACKET, SOCK_DGRAM, 0);
	CHECK(half >= 0);
	set_txtime(half, CLOCK_TAI, 0);
	bound.sll_halen = 6;
	memcpy(bound.sll_addr, link.ether_dhost, 6);
	launch = now_by(CLOCK_TAI) + 5 * MS;
	content = packet(source, destination, launch, "packet");
	fill_timed(&timed, NULL, launch, launch, &content, sizeof(content));
	timed.parts[0].iov_len = 0;
	timed.header.msg_name = &bound;
	timed.header.msg_namelen = sizeof(bound);
	CHECK(sendmsg(half, &timed.header, 0) == sizeof(content));

	/* What the runtime would not send, the kernel sends: a tag. */
	unsigned char tagged[64] = { 0 };
	memcpy(tagged, &link, 12);
	tagged[12] = 0x81;
	launch = now_by(CLOCK_TAI) + 5 * MS;
	fill_timed(&timed, NULL, launch, launch, tagged, sizeof(tagged));
	timed.parts[0].iov_len = 0;
	CHECK(sendmsg(raw, &timed.header, 0) == sizeof(tagged));
	return 0;
}
