/* A socket without room that nobody waits for costs waits for something else nothing: `quiet ADDRESS`. */
#include "common.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/select.h>

/* How often this thread has gone to sleep. */
static long sleeps(void)
{
	struct rusage used;
	CHECK(getrusage(RUSAGE_THREAD, &used) == 0);
	return used.ru_nvcsw;
}

/* A wait in slices of 1 ms sleeps hundreds of times. */
#define CHECK_QUIET(wait)                                          \
	do {                                                       \
		long before = sleeps();                            \
		CHECK((wait) == 0);                                \
		long slept = sleeps() - before;                    \
		if (slept > 50) {                                  \
			fprintf(stderr, "%s: %ld\n", #wait, slept); \
			exit(1);                                   \
		}                                                  \
	} while (0)

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0), epoll = epoll_create1(0);
	CHECK(epoll >= 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 1000 * MS;
	fill_timed(&timed, &to, launch, launch, "fill", 4);
	while (sendmsg(fd, &timed.header, MSG_DONTWAIT) >= 0)
		;
	CHECK(errno == EAGAIN);
	/* The next one waits by itself. */
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 1500 * MS, "room");

	struct epoll_event event = { .events = EPOLLIN }, told;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK_QUIET(epoll_wait(epoll, &told, 1, 1000));
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	CHECK_QUIET(poll(&entry, 1, 1000));
	fd_set set;
	struct timeval second = { 1, 0 };
	FD_ZERO(&set);
	FD_SET(fd, &set);
	CHECK_QUIET(select(fd + 1, &set, NULL, NULL, &second));
	/* Who watches for edges has missed none. */
	event.events = EPOLLOUT | EPOLLET;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
	CHECK(epoll_wait(epoll, &told, 1, -1) == 1 && told.events == EPOLLOUT);
	CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
	puts("quiet");
	return 0;
}
