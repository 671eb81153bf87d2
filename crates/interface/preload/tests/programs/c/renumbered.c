/* The number of a socket that an epoll descriptor watched, for another one: `renumbered ADDRESS`. */
#include "common.h"

#include <poll.h>
#include <sys/epoll.h>

static struct target to;

/* A socket that has an error to tell. */
static int failed(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	must_send_at(fd, &to, now_by(CLOCK_TAI) - 10000 * MS, "never");
	struct pollfd entry = { .fd = fd };
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
	return fd;
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	to = target(arguments[1]);
	int second = failed();
	for (int way = 0; way < 2; way++) {
		int first = failed(), epoll = epoll_create1(0);
		CHECK(epoll >= 0);
		struct epoll_event event = { .events = 0, .data.u64 = 77 };
		CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, first, &event) == 0);
		CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 77);
		CHECK(close(first) == 0);
		CHECK((way ? dup2(second, first) : dup(second)) == first);
		CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
		close(first);
		close(epoll);
	}
	puts("nothing");
	return 0;
}
