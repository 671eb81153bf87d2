/* A child that closes what it inherited, has a session of its own and becomes another program, and its child: `generations ADDRESS`. */
#include "common.h"

#include <signal.h>
#include <sys/prctl.h>

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "parent");
	pid_t first = getpid(), child = fork();
	if (child == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		CHECK(close_range(3, ~0U, 0) == 0);
		fd = timed_socket(to.family, CLOCK_TAI, 0);
		must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "child");
		if (fork() == 0) {
			/* It makes no call that is the preload's, and ends with the first one. */
			while (kill(first, 0) == 0)
				pause_ns(10 * MS);
			raise(SIGKILL);
		}
		execl("/bin/sleep", "sleep", "1000", NULL);
		exit(1);
	}
	CHECK(child > 0);
	for (;;)
		pause();
}
