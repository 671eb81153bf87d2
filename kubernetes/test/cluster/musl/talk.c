// SPDX-License-Identifier: Apache-2.0
// talk ADDRESS: sends 20 datagrams at launch times, as any program does that knows of SO_TXTIME and nothing of Takt. Linked with musl, as Alpine's are.
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef SO_TXTIME
#define SO_TXTIME 61
#endif

/* linux/net_tstamp.h, which musl does not bring. */
struct sock_txtime {
	int clockid;
	uint32_t flags;
};

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(5001)};
	struct sock_txtime clock = {.clockid = CLOCK_TAI};
	int talker = socket(AF_INET, SOCK_DGRAM, 0), class = 5;
	struct timespec now;

	if (argc != 2 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1 || talker < 0 ||
	    setsockopt(talker, SOL_SOCKET, SO_TXTIME, &clock, sizeof(clock)) ||
	    setsockopt(talker, SOL_SOCKET, SO_PRIORITY, &class, sizeof(class)) || clock_gettime(CLOCK_TAI, &now)) {
		perror("talk");
		return 1;
	}
	for (int number = 0; number < 20; number++) {
		uint64_t launch = (now.tv_sec + 1) * 1000000000ULL + now.tv_nsec + number * 5000000ULL;
		char control[CMSG_SPACE(sizeof(launch))] = {0};
		struct iovec data = {&launch, sizeof(launch)};
		struct msghdr message = {.msg_name = &to, .msg_namelen = sizeof(to), .msg_iov = &data, .msg_iovlen = 1,
					 .msg_control = control, .msg_controllen = sizeof(control)};
		struct cmsghdr *at = CMSG_FIRSTHDR(&message);

		at->cmsg_level = SOL_SOCKET;
		at->cmsg_type = SO_TXTIME;
		at->cmsg_len = CMSG_LEN(sizeof(launch));
		memcpy(CMSG_DATA(at), &launch, sizeof(launch));
		if (sendmsg(talker, &message, 0) < 0) {
			perror("talk");
			return 1;
		}
	}
	printf("sent by user %d\n", getuid());
	fflush(stdout);
	for (;;)
		pause();
}
