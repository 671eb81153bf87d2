/*
 * Sends datagrams with launch times, and knows nothing of Takt: statically linked, so that nothing can stand in front of its
 * calls. Each has its launch time by CLOCK_TAI, in nanoseconds, and its number.
 *
 * talker CLOCK ADDRESS PORT COUNT PERIOD_US LEAD_US [WHAT]
 *
 * CLOCK is tai, monotonic, realtime, or none: without a time. LEAD_US may be negative. WHAT:
 *   tos=N   IP_TOS, IPV6_TCLASS
 *   prio=N  SO_PRIORITY
 *   from=N  from that port, IPv4
 *   to=N    to that port
 *   forge   a frame with another source address, over a packet socket
 *   vlan    a frame with a VLAN tag, over a packet socket: of VLAN 7, priority 0
 *   own     the same of VLAN 9, priority 5
 *   arp     a frame of ARP, over a packet socket
 *   short   an IPv4 frame that ends within its header, over a packet socket
 *   gso     eight datagrams in one packet (UDP_SEGMENT)
 *   large   1400 octets
 *   long    datagrams longer than the MTU, in fragments
 */
#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/errqueue.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/net_tstamp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

#define CHECK(what)                                                                                \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			fprintf(stderr, "%s: %s\n", #what, strerror(errno));                       \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static int64_t now_by(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1000000000ll + now.tv_nsec;
}

static uint16_t sum(const uint8_t *bytes, size_t length)
{
	uint32_t total = 0;

	for (size_t at = 0; at + 1 < length; at += 2)
		total += bytes[at] << 8 | bytes[at + 1];
	while (total >> 16)
		total = (total & 0xffff) + (total >> 16);
	return htons(~total);
}

/* A frame for the station that the kernel knows for an address. */
static size_t frame_of(uint8_t *frame, const char *what, struct in_addr to, uint16_t port, const uint8_t *payload, size_t length)
{
	char command[128], text[64] = "", gateway[64] = "";
	struct ifreq own = { .ifr_name = "eth0" };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct in_addr source;
	uint8_t *at = frame;

	CHECK(fd >= 0 && ioctl(fd, SIOCGIFHWADDR, &own) == 0);
	memcpy(frame + 6, own.ifr_hwaddr.sa_data, 6);
	CHECK(ioctl(fd, SIOCGIFADDR, &own) == 0);
	source = ((struct sockaddr_in *)&own.ifr_addr)->sin_addr;
	close(fd);
	snprintf(gateway, sizeof(gateway), "%s", inet_ntoa(to));
	snprintf(command, sizeof(command), "ip neighbour show %s | sed 's/.*lladdr \\([^ ]*\\).*/\\1/'", gateway);
	FILE *pipe = popen(command, "r");
	CHECK(pipe && fgets(text, sizeof(text), pipe));
	pclose(pipe);
	CHECK(sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", at, at + 1, at + 2, at + 3, at + 4, at + 5) == 6);
	at += 12;
	if (strcmp(what, "vlan") == 0 || strcmp(what, "own") == 0) {
		memcpy(at, *what == 'o' ? "\x81\x00\xa0\x09" : "\x81\x00\x00\x07", 4);
		at += 4;
	}
	if (strcmp(what, "arp") == 0) {
		memcpy(at, "\x08\x06\x00\x01\x08\x00\x06\x04\x00\x02", 10);
		memcpy(at + 10, frame + 6, 6);
		memcpy(at + 16, &source, 4);
		return at + 2 + 28 - frame;
	}
	memcpy(at, "\x08\x00", 2);
	at += 2;
	if (strcmp(what, "short") == 0) {
		memcpy(at, "\x45\x00\x00\x40", 4);
		return at + 4 - frame;
	}
	if (strcmp(what, "forge") == 0)
		source.s_addr ^= htonl(0x80);
	struct iphdr ip = {
		.version = 4, .ihl = 5, .tot_len = htons(28 + length), .ttl = 64, .protocol = IPPROTO_UDP,
		.saddr = source.s_addr, .daddr = to.s_addr,
	};
	ip.check = sum((uint8_t *)&ip, sizeof(ip));
	struct udphdr udp = { .source = htons(9), .dest = htons(port), .len = htons(8 + length) };
	memcpy(at, &ip, sizeof(ip));
	memcpy(at + 20, &udp, sizeof(udp));
	memcpy(at + 28, payload, length);
	return at + 28 + length - frame;
}

int main(int count, char **arguments)
{
	CHECK(count >= 7);
	const char *what = count > 7 ? arguments[7] : "";
	int none = strcmp(arguments[1], "none") == 0;
	clockid_t clock = strcmp(arguments[1], "tai") == 0	  ? CLOCK_TAI
			  : strcmp(arguments[1], "realtime") == 0 ? CLOCK_REALTIME
								  : CLOCK_MONOTONIC;
	uint16_t port;
	if (sscanf(what, "to=%hu", &port) != 1)
		port = atoi(arguments[3]);
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	int is_four = inet_pton(AF_INET, arguments[2], &four.sin_addr) == 1;
	CHECK(is_four || inet_pton(AF_INET6, arguments[2], &six.sin6_addr) == 1);
	int packets = atoi(arguments[4]);
	int64_t period = atoll(arguments[5]) * 1000, lead = atoll(arguments[6]) * 1000;
	int raw = !strcmp(what, "forge") || !strcmp(what, "vlan") || !strcmp(what, "own") || !strcmp(what, "arp") ||
		  !strcmp(what, "short");

	int fd = raw ? socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)) : socket(is_four ? AF_INET : AF_INET6, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
	if (raw) {
		struct sockaddr_ll device = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex("eth0") };
		CHECK(bind(fd, (struct sockaddr *)&device, sizeof(device)) == 0);
	} else if (is_four) {
		int own;
		if (sscanf(what, "from=%d", &own) == 1) {
			struct sockaddr_in from = { .sin_family = AF_INET, .sin_port = htons(own) };
			CHECK(bind(fd, (struct sockaddr *)&from, sizeof(from)) == 0);
		}
		CHECK(connect(fd, (struct sockaddr *)&four, sizeof(four)) == 0);
	} else {
		CHECK(connect(fd, (struct sockaddr *)&six, sizeof(six)) == 0);
	}
	struct sock_txtime txtime = { .clockid = clock };
	if (!none)
		CHECK(setsockopt(fd, SOL_SOCKET, SO_TXTIME, &txtime, sizeof(txtime)) == 0);
	int number, segment = 200;
	if (sscanf(what, "tos=%d", &number) == 1)
		CHECK(setsockopt(fd, is_four ? IPPROTO_IP : IPPROTO_IPV6, is_four ? IP_TOS : IPV6_TCLASS, &number, sizeof(number)) == 0);
	if (sscanf(what, "prio=%d", &number) == 1)
		CHECK(setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &number, sizeof(number)) == 0);
	if (strcmp(what, "gso") == 0)
		CHECK(setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) == 0);

	static uint8_t payload[4000], frame[4096];
	size_t length = !strcmp(what, "gso") ? 1600 : !strcmp(what, "large") ? 1400 : !strcmp(what, "long") ? 4000 : 32;
	int64_t next = now_by(CLOCK_MONOTONIC);
	for (int at = 0; at < packets; at++) {
		int64_t tai = now_by(CLOCK_TAI), by_clock = now_by(clock);
		int64_t launch = tai + lead;
		uint64_t time = by_clock + lead;
		memcpy(payload, &launch, 8);
		memcpy(payload + 8, &at, 4);
		struct iovec part = { payload, length };
		if (raw) {
			part.iov_base = frame;
			part.iov_len = frame_of(frame, what, four.sin_addr, port, payload, length);
		}
		char control[CMSG_SPACE(sizeof(time))] = { 0 };
		struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
		if (!none) {
			header.msg_control = control;
			header.msg_controllen = sizeof(control);
			struct cmsghdr *message = CMSG_FIRSTHDR(&header);
			message->cmsg_level = SOL_SOCKET;
			message->cmsg_type = SCM_TXTIME;
			message->cmsg_len = CMSG_LEN(sizeof(time));
			memcpy(CMSG_DATA(message), &time, sizeof(time));
		}
		/* That nobody listened to those before is told instead of sending. */
		while (sendmsg(fd, &header, 0) < 0)
			CHECK(errno == ECONNREFUSED);
		next += period;
		struct timespec until = { next / 1000000000, next % 1000000000 };
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
	}
	return 0;
}
