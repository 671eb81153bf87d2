/* Threads that wait already when a socket comes to have something to tell: `woken ADDRESS`. */
#include "common.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

static struct target to;
static int epoll;
static _Atomic int waiter;

/* Waits until a descriptor is told of: of an error, or of room in which a send succeeds. */
static void *await_error(void *fd)
{
	struct epoll_event told;
	waiter = syscall(SYS_gettid);
	CHECK(epoll_wait(epoll, &told, 1, -1) == 1);
	CHECK(told.data.fd == *(int *)fd && told.events == EPOLLERR);
	return NULL;
}

static void *await_room(void *fd)
{
	struct epoll_event told;
	waiter = syscall(SYS_gettid);
	do {
		CHECK(epoll_wait(epoll, &told, 1, -1) == 1);
		CHECK(told.data.fd == *(int *)fd && told.events == EPOLLOUT);
	} while (send_at(*(int *)fd, &to, now_by(CLOCK_TAI) + MS, "room") < 0);
	return NULL;
}

/* Starts a thread, and goes on when it sleeps. */
static pthread_t start(void *(*body)(void *), int *fd)
{
	pthread_t thread;
	waiter = 0;
	CHECK(pthread_create(&thread, NULL, body, fd) == 0);
	while (!waiter)
		pause_ns(MS);
	await_sleep(getpid(), waiter);
	return thread;
}

static void watch(int fd, uint32_t events)
{
	struct epoll_event event = { .events = events | EPOLLET, .data.fd = fd };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Sends until there is no room; everything leaves a moment later. */
static void fill(int fd)
{
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 2000 * MS;
	fill_timed(&timed, &to, launch, launch, "fill", 4);
	while (sendmsg(fd, &timed.header, MSG_DONTWAIT) >= 0)
		;
	CHECK(errno == EAGAIN);
}

static void ended(pthread_t thread, const char *text)
{
	CHECK(pthread_join(thread, NULL) == 0);
	puts(text);
	fflush(stdout);
}

static void room(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
	watch(fd, EPOLLOUT);
	struct epoll_event told;
	CHECK(epoll_wait(epoll, &told, 1, 0) == 1 && told.events == EPOLLOUT);
	pthread_t thread = start(await_room, &fd);
	fill(fd);
	ended(thread, "room");
	CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, fd, NULL) == 0);
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	to = target(arguments[1]);
	epoll = epoll_create1(0);
	CHECK(epoll >= 0);
	room();

	/* Nothing was to be told of it, and then there is. */
	int first = timed_socket(to.family, CLOCK_TAI, 0);
	watch(first, EPOLLIN);
	pthread_t thread = start(await_error, &first);
	set_txtime(first, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	must_send_at(first, &to, now_by(CLOCK_TAI) - 2000 * MS, "never");
	ended(thread, "an error");
	struct told told;
	CHECK(read_error(first, &told));
	CHECK(epoll_ctl(epoll, EPOLL_CTL_DEL, first, NULL) == 0);

	/* It was not watched, and then it is. */
	int second = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	thread = start(await_error, &second);
	watch(second, EPOLLIN);
	must_send_at(second, &to, now_by(CLOCK_TAI) - 2000 * MS, "never");
	ended(thread, "another error");
	CHECK(read_error(second, &told));

	/* Threads look for this one, and then there is another. */
	room();
	return 0;
}
