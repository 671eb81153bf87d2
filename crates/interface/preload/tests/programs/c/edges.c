/* Room for sends, as programs wait for it: `edges ADDRESS`. */
#include "common.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/time.h>

static struct target to;

/* Sends until there is no room; everything leaves a moment later. */
static void fill(int fd)
{
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 2000 * MS;
	fill_timed(&timed, &to, launch, launch, "fill", 4);
	int sent = 0;
	while (sendmsg(fd, &timed.header, 0) >= 0)
		CHECK(++sent < 100000);
	CHECK(errno == EAGAIN);
}

static void ended(int signal)
{
	(void)signal;
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	to = target(arguments[1]);
	int fd = socket(to.family, SOCK_DGRAM | SOCK_NONBLOCK, 0), epoll = epoll_create1(0);
	CHECK(fd >= 0 && epoll >= 0);
	/* Before it becomes a socket with launch times, as an event loop may do it. */
	struct epoll_event event = { .events = EPOLLOUT | EPOLLET, .data.u64 = 77 }, told;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	set_txtime(fd, CLOCK_TAI, 0);
	CHECK(epoll_wait(epoll, &told, 1, -1) == 1 && told.events == EPOLLOUT);
	CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
	for (int i = 0; i < 3; i++) {
		fill(fd);
		CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
		CHECK(epoll_wait(epoll, &told, 1, -1) == 1 && told.events == EPOLLOUT && told.data.u64 == 77);
		CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
		must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "room");
	}
	/* By the level. */
	event.events = EPOLLOUT;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
	CHECK(epoll_wait(epoll, &told, 1, 0) == 1);
	fill(fd);
	CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
	CHECK(epoll_wait(epoll, &told, 1, -1) == 1 && told.events == EPOLLOUT);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "room");
	/* Once. */
	event.events = EPOLLOUT | EPOLLONESHOT;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
	fill(fd);
	CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
	CHECK(epoll_wait(epoll, &told, 1, -1) == 1 && told.events == EPOLLOUT);
	CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
	/* By poll and select. */
	fill(fd);
	struct pollfd entry = { .fd = fd, .events = POLLOUT };
	CHECK(poll(&entry, 1, 0) == 0);
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLOUT);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "room");
	fill(fd);
	fd_set set;
	struct timeval now = { 0, 0 };
	FD_ZERO(&set);
	FD_SET(fd, &set);
	CHECK(select(fd + 1, NULL, &set, NULL, &now) == 0);
	FD_SET(fd, &set);
	CHECK(select(fd + 1, NULL, &set, NULL, NULL) == 1 && FD_ISSET(fd, &set));
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "room");

	/* A send that waits is interrupted by a signal. */
	int blocking = timed_socket(to.family, CLOCK_TAI, 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 30000 * MS;
	fill_timed(&timed, &to, launch, launch, "wait", 4);
	while (sendmsg(blocking, &timed.header, MSG_DONTWAIT) >= 0)
		;
	struct sigaction action = { .sa_handler = ended };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval timer = { .it_value = { 0, 50000 }, .it_interval = { 0, 50000 } };
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	CHECK(sendmsg(blocking, &timed.header, 0) == -1 && errno == EINTR);
	puts("room");
	return 0;
}
