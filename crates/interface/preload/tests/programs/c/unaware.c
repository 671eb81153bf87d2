/* Every function that the preload stands in front of, on descriptors that are nothing to it: what each returns. */
#include "common.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/un.h>

/* Names that the C library exports and no header declares. */
ssize_t __send(int, const void *, size_t, int);
int __connect(int, const struct sockaddr *, socklen_t);
int __close(int);
int __poll(struct pollfd *, nfds_t, int);
int __dup2(int, int);
int __fcntl(int, int, ...);
ssize_t __write(int, const void *, size_t);
int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);

static void say(const char *what, long result)
{
	printf("%s %ld %d\n", what, result, result < 0 ? errno : 0);
}

/* A constructor may run before the preload has found the C library's functions. */
__attribute__((constructor)) static void early(void)
{
	int pair[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	CHECK(send(pair[0], "x", 1, 0) == 1 && close(pair[0]) == 0);
	struct pollfd entry = { .fd = pair[1], .events = POLLIN };
	CHECK(poll(&entry, 1, 0) == 1);
	close(pair[1]);
}

int main(void)
{
	int pair[2], fd;
	char byte[8];
	fd_set set;
	struct epoll_event event = { .events = EPOLLIN };
	struct iovec part = { byte, sizeof(byte) };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
	struct mmsghdr several[2] = { { .msg_hdr = header }, { .msg_hdr = header } };
	struct timespec now = { 0, 0 };

	CHECK(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, pair) == 0);
	say("send", send(pair[0], "a", 1, 0));
	say("__send", __send(pair[0], "a", 1, 0));
	say("write", write(pair[0], "a", 1));
	say("__write", __write(pair[0], "a", 1));
	say("writev", writev(pair[0], &part, 1));
	say("sendto", sendto(pair[0], "a", 1, 0, NULL, 0));
	say("sendmsg", sendmsg(pair[0], &header, 0));
	say("sendmmsg", sendmmsg(pair[0], several, 2, 0));
	struct pollfd entry = { .fd = pair[1], .events = POLLIN };
	say("poll", poll(&entry, 1, -1));
	say("__poll", __poll(&entry, 1, -1));
	say("ppoll", ppoll(&entry, 1, NULL, NULL));
	FD_ZERO(&set);
	FD_SET(pair[1], &set);
	say("select", select(pair[1] + 1, &set, NULL, NULL, NULL));
	say("__select", __select(pair[1] + 1, &set, NULL, NULL, NULL));
	say("pselect", pselect(pair[1] + 1, &set, NULL, NULL, &now, NULL));
	int epoll = epoll_create1(0);
	say("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, pair[1], &event));
	say("epoll_wait", epoll_wait(epoll, &event, 1, 0));
	say("epoll_pwait", epoll_pwait(epoll, &event, 1, -1, NULL));
	say("epoll_pwait2", epoll_pwait2(epoll, &event, 1, &now, NULL));
	say("recv", recv(pair[1], byte, sizeof(byte), 0));
	say("recvfrom", recvfrom(pair[1], byte, sizeof(byte), 0, NULL, NULL));
	say("recvmsg", recvmsg(pair[1], &header, 0));
	say("recvmmsg", recvmmsg(pair[1], several, 2, 0, NULL));
	say("error queue", recvmsg(pair[1], &header, MSG_ERRQUEUE));
	say("dup", (fd = dup(pair[0])) >= 0);
	say("dup2", dup2(fd, 50));
	say("__dup2", __dup2(fd, 51));
	say("dup3", dup3(fd, 52, O_CLOEXEC));
	say("dup3 to itself", dup3(52, 52, 0));
	say("F_DUPFD", fcntl(fd, F_DUPFD, 60));
	say("F_DUPFD_CLOEXEC", fcntl(fd, F_DUPFD_CLOEXEC, 61));
	say("F_GETFL", fcntl(fd, F_GETFL));
	say("__fcntl", __fcntl(52, F_GETFD));
	say("close", close(fd));
	say("close again", close(fd));
	say("__close", __close(50));
	say("close_range", close_range(51, 100, 0));
	say("closed", fcntl(60, F_GETFD));
	closefrom(500);
	struct sockaddr_un nobody = { .sun_family = AF_UNIX, .sun_path = "/nonexistent/socket" };
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	say("connect", connect(fd, (struct sockaddr *)&nobody, sizeof(nobody)));
	say("__connect", __connect(fd, (struct sockaddr *)&nobody, sizeof(nobody)));
	say("bind", bind(fd, (struct sockaddr *)&nobody, sizeof(nobody)));
	say("setsockopt", setsockopt(fd, SOL_SOCKET, 12345, &fd, sizeof(fd)));
	/* Times on what is no datagram socket are the kernel's affair. */
	struct sock_txtime times = { .clockid = CLOCK_MONOTONIC };
	say("SO_TXTIME", setsockopt(fd, SOL_SOCKET, SO_TXTIME, &times, sizeof(times)));
	times.flags = ~0U;
	say("wrong flags", setsockopt(fd, SOL_SOCKET, SO_TXTIME, &times, sizeof(times)));
	FILE *file = fopen("/dev/null", "w");
	say("fclose", fclose(file));
	/* Nothing changes errno that does not fail. */
	errno = 77;
	poll(&entry, 1, 0);
	say("errno", errno);
	return 0;
}
