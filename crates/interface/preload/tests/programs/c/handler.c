/* A send by a signal handler within a send that waits for room: `handler ADDRESS`. */
#include "common.h"

#include <signal.h>
#include <sys/time.h>

static struct target to;
static int other;
static volatile sig_atomic_t said = -1;

static void handle(int signal)
{
	(void)signal;
	if (said < 0)
		said = send_at(other, &to, now_by(CLOCK_TAI) + 5 * MS, "within") < 0 ? errno : 0;
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	to = target(arguments[1]);
	other = timed_socket(to.family, CLOCK_TAI, 0);
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 50000 * MS;
	fill_timed(&timed, &to, launch, launch, "wait", 4);
	while (sendmsg(fd, &timed.header, MSG_DONTWAIT) >= 0)
		;
	struct sigaction action = { .sa_handler = handle };
	CHECK(sigaction(SIGALRM, &action, NULL) == 0);
	struct itimerval timer = { .it_value = { 0, 50000 }, .it_interval = { 0, 50000 } };
	CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
	CHECK(sendmsg(fd, &timed.header, 0) == -1 && errno == EINTR);
	CHECK(said >= 0);
	puts(said == EAGAIN ? "EAGAIN" : said ? strerror(said) : "0");
	return 0;
}
