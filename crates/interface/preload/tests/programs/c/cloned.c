/* A child that the C library knows nothing of, while another program takes its parent's place: `cloned ADDRESS`. */
#include "common.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "parent");
	int gate[2];
	char octet = 0;
	CHECK(pipe(gate) == 0);
	long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "child");
		CHECK(write(gate[1], &octet, 1) == 1);
		for (;;)
			pause();
	}
	CHECK(read(gate[0], &octet, 1) == 1);
	execl("/bin/sleep", "sleep", "1000", NULL);
	return 1;
}
