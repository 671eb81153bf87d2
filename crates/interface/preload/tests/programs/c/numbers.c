/*
 * System calls by their numbers, by `syscall`: `numbers timed ADDRESS`, `numbers untimed ADDRESS COUNT`, `numbers through`.
 */
#include "common.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { MANY = 3 };

/* As `set_txtime`. */
static int timed(int family, clockid_t clock, uint32_t flags)
{
	int fd = syscall(SYS_socket, family, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
	struct sock_txtime wanted = { .clockid = clock, .flags = flags }, found = { 0 };
	socklen_t length = sizeof(found);
	CHECK(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_TXTIME, &wanted, sizeof(wanted)) == 0);
	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_TXTIME, &found, &length) == 0);
	CHECK(length == sizeof(found) && memcmp(&wanted, &found, length) == 0);
	return fd;
}

static void send_one(int fd, const struct target *to, const char *text)
{
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 5 * MS;
	fill_timed(&timed, to, launch, launch, text, strlen(text));
	CHECK(syscall(SYS_sendmsg, fd, &timed.header, 0) == (long)(sizeof(launch) + strlen(text)));
}

/* `syscall` is no point of cancellation: the thread ends behind its send. */
static struct {
	int fd;
	const struct target *to;
	int sent;
} cancelled;

static void *send_cancelled(void *nothing)
{
	(void)nothing;
	CHECK(pthread_cancel(pthread_self()) == 0);
	send_one(cancelled.fd, cancelled.to, "cancelled");
	cancelled.sent = 1;
	pthread_testcancel();
	return NULL;
}

static void send_timed(const struct target *to)
{
	int fd = timed(to->family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	send_one(fd, to, "one");
	struct timed many[MANY];
	struct mmsghdr messages[MANY] = { 0 };
	int64_t launch = now_by(CLOCK_TAI) + 10 * MS;
	for (int i = 0; i < MANY; i++) {
		static const char *const texts[MANY] = { "many 0", "many 1", "many 2" };
		fill_timed(&many[i], to, launch + i * MS, launch + i * MS, texts[i], strlen(texts[i]));
		messages[i].msg_hdr = many[i].header;
	}
	CHECK(syscall(SYS_sendmmsg, fd, messages, MANY, 0) == MANY);
	for (int i = 0; i < MANY; i++)
		CHECK(messages[i].msg_len == sizeof(launch) + 6);
	/* Through a duplicate, which is connected. */
	int other = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 100);
	CHECK(other >= 100);
	CHECK(syscall(SYS_connect, other, &to->address, to->length) == 0);
	send_one(other, NULL, "connected");
	CHECK(syscall(SYS_close, other) == 0);
	CHECK(syscall(SYS_close, other) == -1 && errno == EBADF);

	/* A missed time is told. */
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = 0, .data.fd = fd };
	CHECK(syscall(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	struct timed late;
	int64_t missed = now_by(CLOCK_TAI) - 10000 * MS;
	fill_timed(&late, NULL, missed, missed, "never", 5);
	CHECK(syscall(SYS_sendmsg, fd, &late.header, 0) == (long)sizeof(missed) + 5);
	CHECK(syscall(SYS_epoll_pwait, epoll, &event, 1, -1, NULL, 8) == 1 && event.events & EPOLLERR);
#ifdef SYS_poll
	struct pollfd ready = { .fd = fd };
	CHECK(syscall(SYS_poll, &ready, 1, -1) == 1 && ready.revents & POLLERR);
#endif
	union {
		char bytes[512];
		struct cmsghdr align;
	} control;
	char packet[2048];
	struct iovec part = { packet, sizeof(packet) };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes) };
	CHECK(syscall(SYS_recvmsg, fd, &header, MSG_ERRQUEUE) > 0);
	struct sock_extended_err error;
	memcpy(&error, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(error));
	CHECK(error.ee_origin == SO_EE_ORIGIN_TXTIME && error.ee_code == SO_EE_CODE_TXTIME_INVALID_PARAM);
	CHECK(syscall(SYS_recvmsg, fd, &header, MSG_ERRQUEUE) == -1 && errno == EAGAIN);
	close(epoll);

	cancelled.fd = fd;
	cancelled.to = to;
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, send_cancelled, NULL) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && cancelled.sent);

	/* For the program there are no descriptors but its own, and those that it was started with. */
	for (int own = 3; own < 1024; own++)
		if (own != fd)
			syscall(SYS_close, own);
	send_one(fd, NULL, "last");
	CHECK(syscall(SYS_close, fd) == 0);
}

/* Without times, and as libuv did it: `sendmmsg` in lots, more than may be on their way. */
static void send_untimed(const struct target *to, int count)
{
	enum { LOT = 20 };
	int fd = syscall(SYS_socket, to->family, SOCK_DGRAM, 0);
	CHECK(fd >= 0);
	int sent = 0;
	while (sent < count) {
		char texts[LOT][16];
		struct iovec parts[LOT];
		struct mmsghdr messages[LOT] = { 0 };
		int lot = count - sent < LOT ? count - sent : LOT;
		for (int i = 0; i < lot; i++) {
			parts[i] = (struct iovec){ texts[i], snprintf(texts[i], sizeof(texts[i]), "%d", sent + i) };
			messages[i].msg_hdr = (struct msghdr){ .msg_name = (void *)&to->address, .msg_namelen = to->length,
							       .msg_iov = &parts[i], .msg_iovlen = 1 };
		}
		int result = syscall(SYS_sendmmsg, fd, messages, lot, MSG_DONTWAIT);
		if (result < 0) {
			CHECK(errno == EAGAIN);
			struct pollfd ready = { .fd = fd, .events = POLLOUT };
			CHECK(poll(&ready, 1, -1) == 1);
			continue;
		}
		sent += result;
	}
	char text[16];
	int length = snprintf(text, sizeof(text), "%d", count);
	CHECK(syscall(SYS_sendto, fd, text, length, 0, &to->address, to->length) == length);
	CHECK(connect(fd, (const struct sockaddr *)&to->address, to->length) == 0);
	length = snprintf(text, sizeof(text), "%d", count + 1);
	CHECK(syscall(SYS_write, fd, text, length) == length);
	struct iovec parts[] = { { "", 0 }, { text, snprintf(text, sizeof(text), "%d", count + 2) } };
	CHECK(syscall(SYS_writev, fd, parts, 2) == (long)parts[1].iov_len);
}

static volatile sig_atomic_t handled;

static void handle(int signal)
{
	(void)signal;
	handled = syscall(SYS_getpid) == getpid();
}

#ifdef __GLIBC__
/* Before the preload has found the C library's functions; musl does not run it. */
static int early;

static void before_all(void)
{
	sigset_t none;
	sigemptyset(&none);
	struct timespec soon = { 0, 1 };
	struct timeval short_time = { 0, 1 };
	struct pollfd nothing = { .fd = -1 };
	CHECK(syscall(SYS_getpid) == getpid());
	CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
	CHECK(pselect(0, NULL, NULL, NULL, &soon, &none) == 0);
	CHECK(select(0, NULL, NULL, NULL, &short_time) == 0);
	CHECK(poll(&nothing, 1, 1) == 0 && ppoll(&nothing, 1, &soon, &none) == 0);
	CHECK(sendto(-1, "", 0, 0, NULL, 0) == -1 && errno == EBADF);
	early = 1;
}

__attribute__((section(".preinit_array"), used)) static void (*const before)(void) = before_all;
#endif

/* All that is not covered is the kernel's, and so is what is covered and concerns no socket with times. */
static void pass_through(void)
{
#ifdef __GLIBC__
	CHECK(early);
#endif
	errno = 77;
	CHECK(syscall(SYS_getpid) == getpid() && errno == 77);
	CHECK(syscall(-1) == -1 && errno == ENOSYS);
	errno = 77;
	CHECK(syscall(447 + 1000) == -1 && errno == ENOSYS);

	/* Six arguments, and a result that is no int. */
	char name[] = "/tmp/takt-numbers-XXXXXX";
	int file = mkstemp(name);
	CHECK(file >= 0 && unlink(name) == 0);
	CHECK(syscall(SYS_write, file, "numbers", 7) == 7);
	struct iovec parts[] = { { " and", 4 }, { " more", 5 } };
	CHECK(syscall(SYS_writev, file, parts, 2) == 9);
	char *mapped = (char *)syscall(SYS_mmap, NULL, 4096UL, PROT_READ, MAP_PRIVATE, file, 0UL);
	CHECK(mapped != MAP_FAILED && !memcmp(mapped, "numbers and more", 16));
	CHECK(syscall(SYS_munmap, mapped, 4096UL) == 0);
	CHECK(syscall(SYS_mmap, NULL, 4096UL, PROT_READ, MAP_PRIVATE, file, 1UL) == -1 && errno == EINVAL);
	/* The sixth one decides: a set of signals that the kernel does not know the size of. */
	sigset_t none;
	sigemptyset(&none);
	struct timespec soon = { 0, 1 };
	struct { const void *set; size_t size; } signals = { &none, 9 };
	CHECK(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &soon, &signals) == -1 && errno == EINVAL);
	signals.size = 8;
	CHECK(syscall(SYS_pselect6, 0, NULL, NULL, NULL, &soon, &signals) == 0);
	CHECK(syscall(SYS_epoll_pwait, -1, NULL, 1, 0, &none, 9) == -1 && errno == EINVAL);

	/* Descriptors. */
	int other = syscall(SYS_dup, file);
	CHECK(other >= 0 && other != file);
	CHECK(syscall(SYS_dup3, file, other, O_CLOEXEC) == other);
	CHECK(syscall(SYS_fcntl, other, F_GETFD) == FD_CLOEXEC);
	CHECK(syscall(SYS_dup3, file, file, 0) == -1 && errno == EINVAL);
#ifdef SYS_dup2
	CHECK(syscall(SYS_dup2, file, other) == other && syscall(SYS_dup2, file, file) == file);
	CHECK(syscall(SYS_fcntl, other, F_GETFD) == 0);
#endif
	CHECK(syscall(SYS_close, other) == 0 && syscall(SYS_close, other) == -1 && errno == EBADF);
	CHECK(syscall(SYS_close_range, file, file, 0) == 0 && syscall(SYS_close, file) == -1 && errno == EBADF);

	/* Sockets without times. */
	int fd = syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(here);
	CHECK(fd >= 0 && syscall(SYS_bind, fd, &here, length) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)&here, &length) == 0);
	CHECK(syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_PRIORITY, &(int){ 3 }, sizeof(int)) == 0);
	int priority = 0;
	length = sizeof(priority);
	CHECK(syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_PRIORITY, &priority, &length) == 0 && priority == 3);
	CHECK(syscall(SYS_sendto, fd, "self", 4, 0, &here, sizeof(here)) == 4);
	char text[8];
	struct sockaddr_in from;
	length = sizeof(from);
	CHECK(syscall(SYS_recvfrom, fd, text, sizeof(text), 0, &from, &length) == 4 && !memcmp(text, "self", 4));
	CHECK(length == sizeof(from) && from.sin_port == here.sin_port);
	CHECK(syscall(SYS_recvfrom, fd, text, sizeof(text), MSG_DONTWAIT, NULL, NULL) == -1 && errno == EAGAIN);
	CHECK(syscall(SYS_sendmsg, fd, NULL, 0) == -1 && errno == EFAULT);
	CHECK(syscall(SYS_sendto, -1, "", 0, 0, NULL, 0) == -1 && errno == EBADF);
	close(fd);

	/* Calls that return twice. */
	int child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	if (child == 0)
		syscall(SYS_exit_group, 7);
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);

	struct sigaction action = { .sa_handler = handle };
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), SIGUSR1) == 0 && handled);
}

int main(int count, char **arguments)
{
	CHECK(count > 1);
	if (!strcmp(arguments[1], "through")) {
		pass_through();
	} else {
		CHECK(count > 2);
		struct target to = target(arguments[2]);
		if (count == 4)
			send_untimed(&to, atoi(arguments[3]));
		else
			send_timed(&to);
	}
	puts("as it should be");
	return 0;
}
