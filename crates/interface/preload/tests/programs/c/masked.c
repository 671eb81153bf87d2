/* Signals that are blocked but while a wait lasts, whose socket has no room: `masked ADDRESS`. */
#include "common.h"

#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>

static volatile sig_atomic_t handled;

static void handle(int signal)
{
	(void)signal;
	handled++;
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 50000 * MS;
	fill_timed(&timed, &to, launch, launch, "fill", 4);
	while (sendmsg(fd, &timed.header, MSG_DONTWAIT) >= 0)
		;
	CHECK(errno == EAGAIN);

	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
	sigset_t blocked, none;
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLOUT };
	CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	struct pollfd entry = { .fd = fd, .events = POLLOUT };
	fd_set write;
	FD_ZERO(&write);
	FD_SET(fd, &write);
	for (int way = 0; way < 3; way++) {
		CHECK(raise(SIGUSR1) == 0 && handled == way);
		int result = way == 0   ? ppoll(&entry, 1, NULL, &none)
			     : way == 1 ? pselect(fd + 1, NULL, &write, NULL, NULL, &none)
					: epoll_pwait(epoll, &event, 1, -1, &none);
		CHECK(result == -1 && errno == EINTR && handled == way + 1);
	}
	puts("interrupted");
	return 0;
}
