/* Two processes wait on one epoll descriptor, and a socket of one has something to tell: `forked ADDRESS`. */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int epoll, fd;
static _Atomic int waiter;

static void *await_error(void *unused)
{
	struct epoll_event told;
	waiter = syscall(SYS_gettid);
	CHECK(epoll_wait(epoll, &told, 1, -1) == 1);
	CHECK(told.data.fd == fd && told.events == EPOLLERR);
	return unused;
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	epoll = epoll_create1(0);
	CHECK(epoll >= 0);
	fd = timed_socket(to.family, CLOCK_TAI, 0);
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.fd = fd };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	int gate[2];
	char octet = 0;
	CHECK(pipe(gate) == 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(read(gate[0], &octet, 1) == 1);
		/* Of its own sockets none has anything to tell. */
		struct epoll_event told;
		int ready = epoll_wait(epoll, &told, 1, -1);
		fprintf(stderr, "the child was told %d, data %llx\n", ready, (unsigned long long)told.data.u64);
		_exit(1);
	}
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, await_error, NULL) == 0);
	while (!waiter)
		pause_ns(MS);
	await_sleep(getpid(), waiter);
	/* Who has come last is woken first. */
	CHECK(write(gate[1], &octet, 1) == 1);
	int left;
	do {
		CHECK(ioctl(gate[0], FIONREAD, &left) == 0);
		pause_ns(MS);
	} while (left);
	await_sleep(child, child);
	set_txtime(fd, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	must_send_at(fd, &to, now_by(CLOCK_TAI) - 2000 * MS, "never");
	int status;
	while (pthread_tryjoin_np(thread, NULL) != 0) {
		CHECK(waitpid(child, &status, WNOHANG) == 0);
		pause_ns(MS);
	}
	await_sleep(child, child);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFSIGNALED(status));
	puts("apart");
	return 0;
}
