/* Threads that share sockets, are interrupted by signals that send, and are cancelled: `threads ADDRESS`. */
#include "common.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>

enum { THREADS = 4, EACH = 50 };

static struct target to;
static int shared;
static volatile sig_atomic_t interrupted, handled;

static void *talk(void *unused)
{
	(void)unused;
	int own = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	for (int i = 0; i < EACH; i++) {
		must_send_at(shared, &to, now_by(CLOCK_TAI) + MS, "shared");
		must_send_at(own, &to, now_by(CLOCK_TAI) + MS, "own");
		struct pollfd entry = { .fd = own, .events = 0 };
		poll(&entry, 1, 0);
		/* Others may open and close at the same time. */
		close(dup(shared));
	}
	close(own);
	return NULL;
}

static void send_in_handler(int signal)
{
	(void)signal;
	int error = errno;
	interrupted++;
	if (send_at(shared, &to, now_by(CLOCK_TAI) + MS, "handler") > 0)
		handled++;
	errno = error;
}

static void signals(void)
{
	struct sigaction action = { .sa_handler = send_in_handler, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 500 }, { 0, 500 } }, never = { 0 };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (int i = 0; i < 400; i++) {
		void *memory = malloc(100 + i * 100);
		send_at(shared, &to, now_by(CLOCK_TAI) + MS, "main");
		close(timed_socket(to.family, CLOCK_TAI, 0));
		struct pollfd entry = { .fd = shared, .events = 0 };
		poll(&entry, 1, 0);
		free(memory);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	CHECK(interrupted > 0 && handled == interrupted);
}

static void *wait_for_ever(void *fd)
{
	struct pollfd entry = { .fd = *(int *)fd, .events = 0 };
	for (;;)
		poll(&entry, 1, -1);
	return NULL;
}

static void *send_for_ever(void *fd)
{
	for (;;)
		send_at(*(int *)fd, &to, now_by(CLOCK_TAI) + MS, "cancelled");
	return NULL;
}

static void cancelling(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	void *(*bodies[])(void *) = { wait_for_ever, send_for_ever };
	for (int i = 0; i < 2; i++) {
		pthread_t thread;
		void *result;
		CHECK(pthread_create(&thread, NULL, bodies[i], &fd) == 0);
		pause_ns(20 * MS);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	/* Nothing is left locked. */
	must_send_at(fd, &to, now_by(CLOCK_TAI) + MS, "uncancelled");
	close(fd);
}

int main(int count, char **arguments)
{
	pthread_t threads[THREADS];
	CHECK(count == 2);
	to = target(arguments[1]);
	shared = timed_socket(to.family, CLOCK_TAI, 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, talk, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	signals();
	cancelling();
	return 0;
}
