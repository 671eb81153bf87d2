/* Ways past the preload where the runtime is required: `past ADDRESS`. Statically linked, it is past it altogether. */
#include "common.h"

#include <sys/syscall.h>

/* A system call past the C library. */
static long by_hand(long number, long a, long b, long c, long d, long e)
{
	long result;
#if defined(__x86_64__)
	register long fourth __asm__("r10") = d, fifth __asm__("r8") = e;
	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth)
			 : "rcx", "r11", "memory");
#elif defined(__aarch64__)
	register long call __asm__("x8") = number, first __asm__("x0") = a, second __asm__("x1") = b;
	register long third __asm__("x2") = c, fourth __asm__("x3") = d, fifth __asm__("x4") = e;
	__asm__ volatile("svc 0"
			 : "+r"(first)
			 : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth)
			 : "memory");
	result = first;
#endif
	return result;
}

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
	CHECK(by_hand(SYS_sendmsg, fd, (long)&timed.header, 0, 0, 0) == -EINVAL);
	int other = socket(to.family, SOCK_DGRAM, 0);
	CHECK(by_hand(SYS_setsockopt, other, SOL_SOCKET, SO_TXTIME, (long)&times, sizeof(times)) == -EPERM);
	char parameters[256] = { 0 };
	CHECK(syscall(SYS_io_uring_setup, 4, parameters) == -1 && errno == EPERM);
	/* All else is as it was. */
	CHECK(setsockopt(other, SOL_SOCKET, SO_PRIORITY, &(int){ 3 }, sizeof(int)) == 0);
	puts("no way past");
	return 0;
}
