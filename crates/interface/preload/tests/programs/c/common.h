/* What the programs of the tests have in common. They check what they see and end with 1 if it is not right. */
#ifndef COMMON_H
#define COMMON_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <time.h> /* before the kernel's, which need it of musl */
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef CLOCK_TAI
#define CLOCK_TAI 11
#endif

#define PORT 5001
#define MS 1000000LL

#define CHECK(condition)                                                                        \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s (errno %d: %s)\n", __FILE__, __LINE__, \
				#condition, errno, strerror(errno));                            \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

static inline int64_t now_by(clockid_t clock)
{
	struct timespec now;
	CHECK(clock_gettime(clock, &now) == 0);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

struct target {
	struct sockaddr_storage address;
	socklen_t length;
	int family;
};

static inline struct target target(const char *text)
{
	struct target target = { .family = strchr(text, ':') ? AF_INET6 : AF_INET };
	if (target.family == AF_INET) {
		struct sockaddr_in *address = (struct sockaddr_in *)&target.address;
		address->sin_family = AF_INET;
		address->sin_port = htons(PORT);
		CHECK(inet_pton(AF_INET, text, &address->sin_addr) == 1);
		target.length = sizeof(*address);
	} else {
		struct sockaddr_in6 *address = (struct sockaddr_in6 *)&target.address;
		address->sin6_family = AF_INET6;
		address->sin6_port = htons(PORT);
		CHECK(inet_pton(AF_INET6, text, &address->sin6_addr) == 1);
		target.length = sizeof(*address);
	}
	return target;
}

static inline void set_txtime(int fd, clockid_t clock, uint32_t flags)
{
	struct sock_txtime wanted = { .clockid = clock, .flags = flags }, found = { 0 };
	socklen_t length = sizeof(found);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_TXTIME, &wanted, sizeof(wanted)) == 0);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_TXTIME, &found, &length) == 0);
	CHECK(length == sizeof(found) && memcmp(&wanted, &found, length) == 0);
}

static inline int timed_socket(int family, clockid_t clock, uint32_t flags)
{
	int fd = socket(family, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
	set_txtime(fd, clock, flags);
	return fd;
}

/* A message with one control message. The structure stays where it is. */
struct timed {
	struct msghdr header;
	struct iovec parts[2];
	int64_t launch;
	union {
		char bytes[CMSG_SPACE(sizeof(uint64_t))];
		struct cmsghdr align;
	} control;
};

/* To leave at an instant of CLOCK_TAI, which comes first in the payload, told to the kernel as `time`. */
static inline void fill_timed(struct timed *timed, const struct target *to, int64_t launch, uint64_t time,
			      const void *text, size_t length)
{
	memset(timed, 0, sizeof(*timed));
	timed->launch = launch;
	timed->parts[0] = (struct iovec){ &timed->launch, sizeof(timed->launch) };
	timed->parts[1] = (struct iovec){ (void *)text, length };
	if (to) {
		timed->header.msg_name = (void *)&to->address;
		timed->header.msg_namelen = to->length;
	}
	timed->header.msg_iov = timed->parts;
	timed->header.msg_iovlen = 2;
	timed->header.msg_control = timed->control.bytes;
	timed->header.msg_controllen = sizeof(timed->control.bytes);
	struct cmsghdr *message = CMSG_FIRSTHDR(&timed->header);
	message->cmsg_level = SOL_SOCKET;
	message->cmsg_type = SCM_TXTIME;
	message->cmsg_len = CMSG_LEN(sizeof(time));
	memcpy(CMSG_DATA(message), &time, sizeof(time));
}

/* Sends a text at an instant of CLOCK_TAI. */
static inline ssize_t send_at(int fd, const struct target *to, int64_t launch, const char *text)
{
	struct timed timed;
	fill_timed(&timed, to, launch, launch, text, strlen(text));
	return sendmsg(fd, &timed.header, 0);
}

static inline void must_send_at(int fd, const struct target *to, int64_t launch, const char *text)
{
	CHECK(send_at(fd, to, launch, text) == (ssize_t)(sizeof(launch) + strlen(text)));
}

static inline void pause_ns(int64_t time)
{
	struct timespec pause = { time / 1000000000LL, time % 1000000000LL };
	nanosleep(&pause, NULL);
}

/* An entry of an error queue. */
struct told {
	struct sock_extended_err error;
	struct timespec stamp;
	int stamped;
	struct in_addr offender;
	int interface;
	char packet[2048];
	ssize_t length;
};

/* Reads one entry; 0 if there is none. */
static inline int read_error(int fd, struct told *told)
{
	union {
		char bytes[512];
		struct cmsghdr align;
	} control;
	struct iovec part = { told->packet, sizeof(told->packet) };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes) };
	memset(told, 0, sizeof(*told));
	told->length = recvmsg(fd, &header, MSG_ERRQUEUE);
	if (told->length < 0) {
		CHECK(errno == EAGAIN);
		return 0;
	}
	CHECK(header.msg_flags == MSG_ERRQUEUE);
	int found = 0;
	for (struct cmsghdr *message = CMSG_FIRSTHDR(&header); message; message = CMSG_NXTHDR(&header, message)) {
		if (message->cmsg_level == SOL_SOCKET && message->cmsg_type == SCM_TIMESTAMPING) {
			memcpy(&told->stamp, CMSG_DATA(message), sizeof(told->stamp));
			told->stamped = 1;
		} else if (message->cmsg_level == SOL_IP && message->cmsg_type == IP_PKTINFO) {
			memcpy(&told->interface, CMSG_DATA(message), sizeof(int));
		} else {
			CHECK((message->cmsg_level == SOL_IP && message->cmsg_type == IP_RECVERR) ||
			      (message->cmsg_level == SOL_IPV6 && message->cmsg_type == IPV6_RECVERR) ||
			      (message->cmsg_level == SOL_PACKET));
			memcpy(&told->error, CMSG_DATA(message), sizeof(told->error));
			if (message->cmsg_level == SOL_IP)
				memcpy(&told->offender, CMSG_DATA(message) + sizeof(told->error) + 4, 4);
			found = 1;
		}
	}
	CHECK(found);
	return 1;
}

static inline uint64_t told_time(const struct told *told)
{
	return (uint64_t)told->error.ee_data << 32 | told->error.ee_info;
}

/* Goes on when a thread sleeps. */
static inline void await_sleep(int process, int thread)
{
	char path[64], text[512], state;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", process, thread);
	do {
		pause_ns(MS);
		int file = open(path, O_RDONLY);
		CHECK(file >= 0);
		ssize_t length = read(file, text, sizeof(text) - 1);
		CHECK(length > 0);
		close(file);
		text[length] = 0;
		state = strrchr(text, ')')[2];
	} while (state != 'S');
}

#endif
