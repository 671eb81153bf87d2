/* Every way to send a datagram at a time: `talker ADDRESS`. The texts are what the listener expects. */
#include "common.h"

#include <fcntl.h>
#include <linux/ipv6.h>
#include <netinet/ip.h>

static struct target to;

static void unconnected(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "unconnected");
	/* The kernel has chosen a port, and the answer comes to the socket. */
	char answer[64];
	ssize_t length = recv(fd, answer, sizeof(answer), 0);
	CHECK(length == 6 && memcmp(answer, "answer", 6) == 0);
	close(fd);
}

static void connected(void)
{
	int fd = socket(to.family, SOCK_DGRAM, 0);
	CHECK(connect(fd, (struct sockaddr *)&to.address, to.length) == 0);
	set_txtime(fd, CLOCK_TAI, 0);
	must_send_at(fd, NULL, now_by(CLOCK_TAI) + 5 * MS, "connected");
	/* What has no time is the kernel's. */
	int64_t now = now_by(CLOCK_TAI);
	CHECK(send(fd, &now, sizeof(now), 0) == sizeof(now));
	CHECK(write(fd, &now, sizeof(now)) == sizeof(now));
	struct iovec part = { &now, sizeof(now) };
	CHECK(writev(fd, &part, 1) == sizeof(now));
	CHECK(sendto(fd, &now, sizeof(now), 0, (struct sockaddr *)&to.address, to.length) == sizeof(now));
	close(fd);
}

static void mapped(void)
{
	if (to.family != AF_INET)
		return;
	struct target six = { .family = AF_INET6, .length = sizeof(struct sockaddr_in6) };
	struct sockaddr_in6 *address = (struct sockaddr_in6 *)&six.address;
	address->sin6_family = AF_INET6;
	address->sin6_port = htons(PORT);
	address->sin6_addr.s6_addr[10] = address->sin6_addr.s6_addr[11] = 0xff;
	memcpy(address->sin6_addr.s6_addr + 12, &((struct sockaddr_in *)&to.address)->sin_addr, 4);
	int fd = timed_socket(AF_INET6, CLOCK_TAI, 0);
	must_send_at(fd, &six, now_by(CLOCK_TAI) + 5 * MS, "mapped");
	close(fd);
}

static void by_clock(clockid_t clock, const char *text)
{
	int fd = timed_socket(to.family, clock, 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 5 * MS;
	/* The two clocks are read one after the other: later is allowed, earlier is not. */
	uint64_t time = now_by(clock) + 5 * MS;
	fill_timed(&timed, &to, launch, time, text, strlen(text));
	CHECK(sendmsg(fd, &timed.header, MSG_DONTWAIT | MSG_CONFIRM) > 0);
	close(fd);
}

static void many(void)
{
	enum { COUNT = 5 };
	struct mmsghdr messages[COUNT];
	struct timed timed[COUNT];
	char texts[COUNT][8];
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	int64_t launch = now_by(CLOCK_TAI) + 5 * MS;
	for (int i = 0; i < COUNT; i++) {
		snprintf(texts[i], sizeof(texts[i]), "many %d", i);
		fill_timed(&timed[i], &to, launch + i * MS, launch + i * MS, texts[i], strlen(texts[i]));
		messages[i] = (struct mmsghdr){ .msg_hdr = timed[i].header };
	}
	CHECK(sendmmsg(fd, messages, COUNT, 0) == COUNT);
	for (int i = 0; i < COUNT; i++)
		CHECK(messages[i].msg_len == 8 + strlen(texts[i]));
	close(fd);
}

static void too_long(void)
{
	static char text[65536];
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 5 * MS;
	size_t header = to.family == AF_INET ? 28 : 48;
	memset(text, 'x', sizeof(text));
	fill_timed(&timed, &to, launch, launch, text, 1450 - header - 8 + 1);
	CHECK(sendmsg(fd, &timed.header, 0) == -1 && errno == EMSGSIZE);
	fill_timed(&timed, &to, launch, launch, text, sizeof(text));
	CHECK(sendmsg(fd, &timed.header, 0) == -1 && errno == EMSGSIZE);
	fill_timed(&timed, &to, launch, launch, text, 1450 - header - 8);
	CHECK(sendmsg(fd, &timed.header, 0) == (ssize_t)(1450 - header));
	close(fd);
}

static void marked(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	if (to.family == AF_INET) {
		CHECK(setsockopt(fd, SOL_IP, IP_TOS, &(int){ 0xb8 }, sizeof(int)) == 0);
		CHECK(setsockopt(fd, SOL_IP, IP_TTL, &(int){ 7 }, sizeof(int)) == 0);
	} else {
		CHECK(setsockopt(fd, SOL_IPV6, IPV6_TCLASS, &(int){ 0xb8 }, sizeof(int)) == 0);
		CHECK(setsockopt(fd, SOL_IPV6, IPV6_UNICAST_HOPS, &(int){ 7 }, sizeof(int)) == 0);
	}
	CHECK(setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &(int){ 6 }, sizeof(int)) == 0);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "marked");
	close(fd);
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	to = target(arguments[1]);
	unconnected();
	connected();
	mapped();
	by_clock(CLOCK_MONOTONIC, "monotonic");
	by_clock(CLOCK_REALTIME, "realtime");
	by_clock(CLOCK_TAI, "tai");
	many();
	too_long();
	marked();
	return 0;
}
