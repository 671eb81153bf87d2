/* Waits on many descriptors beside a socket that awaits stamps, between two marks: `watching ADDRESS`. */
#include "common.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>

enum { OTHERS = 1000, WAITS = 100 };

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0), epoll = epoll_create1(0);
	int stamps = SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
	CHECK(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &stamps, sizeof(stamps)) == 0);
	struct epoll_event event = { .events = EPOLLIN, .data.fd = fd }, told;
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	for (int i = 0; i < OTHERS; i++) {
		event.data.fd = eventfd(0, 0);
		CHECK(event.data.fd >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
	}
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "stamped");
	CHECK(epoll_wait(epoll, &told, 1, -1) == 1 && told.events == EPOLLERR);
	struct told entry;
	CHECK(read_error(fd, &entry) && entry.stamped);
	syscall(SYS_getppid);
	for (int i = 0; i < WAITS; i++)
		CHECK(epoll_wait(epoll, &told, 1, 0) == 0);
	syscall(SYS_getppid);
	return 0;
}
