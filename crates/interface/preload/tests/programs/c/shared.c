/* Descriptors that an epoll descriptor watches with the same data: `shared ADDRESS`. */
#include "common.h"

#include <poll.h>
#include <sys/epoll.h>

enum { SAME = 0 };

static int epoll;

static void watch(int operation, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.u64 = SAME };
	CHECK(epoll_ctl(epoll, operation, fd, &event) == 0);
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS), others[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, others) == 0);
	epoll = epoll_create1(0);
	CHECK(epoll >= 0);
	struct epoll_event told[4];
	watch(EPOLL_CTL_ADD, fd, EPOLLOUT);
	CHECK(epoll_wait(epoll, told, 4, 0) == 1 && told[0].events == EPOLLOUT);

	/* An error of one is not the other's. */
	must_send_at(fd, &to, now_by(CLOCK_TAI) - 2000 * MS, "never");
	struct pollfd entry = { .fd = fd, .events = 0 };
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
	watch(EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
	watch(EPOLL_CTL_ADD, others[0], EPOLLOUT | EPOLLET);
	CHECK(epoll_wait(epoll, told, 4, 0) == 2);
	CHECK((told[0].events ^ told[1].events) == (EPOLLOUT | EPOLLERR) && !(told[0].events & told[1].events));
	struct told error;
	CHECK(read_error(fd, &error));

	/* The one has no room, and takes none from the other. */
	CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, others[0], NULL) == 0);
	watch(EPOLL_CTL_MOD, fd, EPOLLOUT);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 30000 * MS;
	fill_timed(&timed, &to, launch, launch, "wait", 4);
	while (sendmsg(fd, &timed.header, MSG_DONTWAIT) >= 0)
		;
	CHECK(errno == EAGAIN);
	CHECK(epoll_wait(epoll, told, 4, 0) == 0);
	watch(EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLET);
	CHECK(epoll_wait(epoll, told, 4, 0) == 0);
	watch(EPOLL_CTL_ADD, others[0], EPOLLOUT | EPOLLET);
	CHECK(epoll_wait(epoll, told, 4, 0) == 1 && told[0].events == EPOLLOUT);
	char bytes[4096] = { 0 };
	while (write(others[0], bytes, sizeof(bytes)) > 0)
		;
	CHECK(errno == EAGAIN && epoll_wait(epoll, told, 4, 0) == 0);
	while (read(others[1], bytes, sizeof(bytes)) > 0)
		;
	CHECK(errno == EAGAIN);
	CHECK(epoll_wait(epoll, told, 4, 0) == 1 && told[0].events == EPOLLOUT);
	puts("apart");
	return 0;
}
