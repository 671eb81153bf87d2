/* What is closed while a message waits for its next hop: `holding ADDRESS WAY`. */
#include "common.h"

#include <sys/syscall.h>
#include <sys/wait.h>

static void mark(void)
{
	syscall(SYS_getppid);
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5000 * MS, "held");
	if (!strcmp(arguments[2], "duplicate")) {
		int other = dup(fd);
		mark();
		CHECK(close(other) == 0);
		mark();
	} else {
		pid_t child = vfork();
		if (child == 0) {
			mark();
			close(fd);
			mark();
			_exit(0);
		}
		int status;
		CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	}
	return 0;
}
