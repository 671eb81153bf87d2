/* Ways past the preload where the runtime is required: `past ADDRESS`. Statically linked, it is past it altogether. */
#include "common.h"

#include <sys/syscall.h>

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	struct sock_txtime times = { .clockid = CLOCK_MONOTONIC };
	int fd = socket(to.family, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
#ifdef STATIC
	CHECK(setsockopt(fd, SOL_SOCKET, SO_TXTIME, &times, sizeof(times)) == -1 && errno == EPERM);
#else
	set_txtime(fd, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "by the runtime");
#endif
	/* With a time that the kernel would have ignored. */
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 1000 * MS;
	fill_timed(&timed, &to, launch, launch, "past", 4);
	CHECK(syscall(SYS_sendmsg, fd, &timed.header, 0) == -1 && errno == EINVAL);
	int other = socket(to.family, SOCK_DGRAM, 0);
	CHECK(syscall(SYS_setsockopt, other, SOL_SOCKET, SO_TXTIME, &times, sizeof(times)) == -1 && errno == EPERM);
	char parameters[256] = { 0 };
	CHECK(syscall(SYS_io_uring_setup, 4, parameters) == -1 && errno == EPERM);
	/* All else is as it was. */
	CHECK(setsockopt(other, SOL_SOCKET, SO_PRIORITY, &(int){ 3 }, sizeof(int)) == 0);
	puts("no way past");
	return 0;
}
