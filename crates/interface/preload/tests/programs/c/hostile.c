/* Messages that are wrong in every way: the kernel's errors, and never a crash. `hostile ADDRESS` */
#include "common.h"

static struct target to;
static int fd;

static void must_fail(const struct msghdr *header, int error, const char *what)
{
	errno = 0;
	ssize_t result = sendmsg(fd, header, 0);
	if (result != -1 || errno != error) {
		fprintf(stderr, "%s: %zd, errno %d and not %d\n", what, result, errno, error);
		exit(1);
	}
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	to = target(arguments[1]);
	fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	void *const nowhere = (void *)8;
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI);
#define FRESH fill_timed(&timed, &to, launch, launch, "wrong", 5)
#define HEADER timed.header
#define CONTROL CMSG_FIRSTHDR(&timed.header)

	must_fail(nowhere, EFAULT, "no message");
	FRESH, HEADER.msg_name = nowhere;
	must_fail(&HEADER, EFAULT, "no name");
	FRESH, HEADER.msg_namelen = 3;
	must_fail(&HEADER, EINVAL, "short name");
	FRESH, HEADER.msg_iov = nowhere;
	must_fail(&HEADER, EFAULT, "no parts");
	FRESH, HEADER.msg_iovlen = 1025;
	must_fail(&HEADER, EMSGSIZE, "many parts");
	FRESH, timed.parts[1].iov_base = nowhere;
	must_fail(&HEADER, EFAULT, "no payload");
	FRESH, timed.parts[1].iov_len = ~0UL >> 1;
	CHECK(sendmsg(fd, &HEADER, 0) == -1 && (errno == EMSGSIZE || errno == EINVAL || errno == EFAULT));
	FRESH, HEADER.msg_control = nowhere;
	must_fail(&HEADER, EFAULT, "no control");
	FRESH, HEADER.msg_controllen = ~0UL;
	must_fail(&HEADER, ENOBUFS, "endless control");
	FRESH, CONTROL->cmsg_len = 0;
	must_fail(&HEADER, EINVAL, "control of no length");
	FRESH, CONTROL->cmsg_len = CMSG_LEN(8) + 8;
	must_fail(&HEADER, EINVAL, "control beyond its end");
	FRESH, CONTROL->cmsg_len = CMSG_LEN(4);
	must_fail(&HEADER, EINVAL, "half a time");
	FRESH, CONTROL->cmsg_type = 12345;
	must_fail(&HEADER, EINVAL, "unknown control");
	FRESH;
	if (to.family == AF_INET)
		((struct sockaddr_in *)&to.address)->sin_port = 0;
	else
		((struct sockaddr_in6 *)&to.address)->sin6_port = 0;
	must_fail(&HEADER, EINVAL, "port 0");
	to = target(arguments[1]);
	CHECK(sendmmsg(fd, nowhere, 1, 0) == -1 && errno == EFAULT);
	CHECK(recvmsg(fd, nowhere, MSG_ERRQUEUE) == -1 && (errno == EFAULT || errno == EAGAIN));

	/* Anything: of lengths that are likely, and addresses that are right or wrong. */
	srand(1);
	for (int round = 0; round < 20000; round++) {
		FRESH;
		unsigned char *bytes = (unsigned char *)timed.control.bytes;
		for (int i = rand() % 6; i > 0; i--)
			bytes[rand() % sizeof(timed.control.bytes)] = rand();
		if (rand() % 4 == 0)
			CONTROL->cmsg_len = rand() % 64;
		if (rand() % 8 == 0)
			HEADER.msg_controllen = rand() % 64 % (sizeof(timed.control.bytes) + 1);
		if (rand() % 8 == 0)
			HEADER.msg_namelen = rand() % 200;
		if (rand() % 16 == 0)
			HEADER.msg_iovlen = rand() % 3;
		if (rand() % 16 == 0)
			timed.parts[rand() % 2].iov_base = nowhere;
		sendmsg(fd, &HEADER, MSG_DONTWAIT);
		struct told told;
		while (recv(fd, &told, sizeof(told), MSG_ERRQUEUE | MSG_DONTWAIT) >= 0)
			;
	}
	/* And it still works. */
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "works");
	return 0;
}
