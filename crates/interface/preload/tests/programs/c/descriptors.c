/* Descriptors that are copied, inherited, handed over, closed and used again: `descriptors ADDRESS`. */
#include "common.h"

#include <fcntl.h>
#include <sys/wait.h>

static struct target to;

static int64_t soon(void)
{
	return now_by(CLOCK_TAI) + 5 * MS;
}

/* What the kernel answers when a time is named on a socket that has none: so it is not accelerated. */
static void must_be_the_kernels(int fd)
{
	CHECK(send_at(fd, &to, soon(), "refused") == -1 && errno == EINVAL);
}

static void copies(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	int second = dup(fd), third = fcntl(fd, F_DUPFD, 100), fourth = fcntl(fd, F_DUPFD_CLOEXEC, 2000);
	CHECK(second >= 0 && third >= 100 && fourth >= 2000);
	CHECK(dup2(fd, 200) == 200 && dup3(fd, 201, O_CLOEXEC) == 201);
	CHECK(dup2(fd, fd) == fd);
	close(fd);
	must_send_at(second, &to, soon(), "dup");
	must_send_at(third, &to, soon(), "F_DUPFD");
	must_send_at(fourth, &to, soon(), "F_DUPFD_CLOEXEC");
	must_send_at(200, &to, soon(), "dup2");
	must_send_at(201, &to, soon(), "dup3");

	/* It has times by a copy, after it was sent from. */
	int original = socket(to.family, SOCK_DGRAM, 0), copy = dup(original);
	must_be_the_kernels(original);
	set_txtime(copy, CLOCK_TAI, 0);
	must_send_at(original, &to, soon(), "original");
	must_send_at(copy, &to, soon(), "copy");
	close(copy);
	must_send_at(original, &to, soon(), "original alone");
	close(original);

	/* A number that comes to mean something else. */
	int plain = socket(to.family, SOCK_DGRAM, 0);
	CHECK(dup2(plain, 200) == 200);
	must_be_the_kernels(200);
	CHECK(dup2(999, 201) == -1 && errno == EBADF);
	must_send_at(201, &to, soon(), "still dup3");
	close(second);
	int again = socket(to.family, SOCK_DGRAM, 0);
	must_be_the_kernels(again);
#ifdef __GLIBC__ /* musl has neither */
	CHECK(close_range(2000, ~0U, 0) == 0);
	int high = fcntl(plain, F_DUPFD, 2000);
	must_be_the_kernels(high);
	closefrom(2000);
#endif

	/* Closed inside the C library. */
	FILE *stream = fdopen(third, "w");
	CHECK(stream && fclose(stream) == 0);
	CHECK(dup2(plain, third) == third);
	must_be_the_kernels(third);
	close(third);
	close(200);
	close(201);
	close(again);
	close(plain);
}

static void must_end_well(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void children(const char *program, const char *address)
{
	int fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	must_send_at(fd, &to, soon(), "parent");
	pid_t child = fork();
	if (child == 0) {
		must_send_at(fd, &to, soon(), "child");
		must_send_at(timed_socket(to.family, CLOCK_TAI, 0), &to, soon(), "child's own");
		exit(0);
	}
	must_end_well(child);
	must_send_at(fd, &to, soon(), "parent again");

	char number[16];
	snprintf(number, sizeof(number), "%d", fd);
	child = fork();
	if (child == 0) {
		execl(program, program, address, number, NULL);
		_exit(1);
	}
	must_end_well(child);

	/* It shares our memory until it executes something else. */
	child = vfork();
	if (child == 0) {
		close(fd);
		execl("/bin/true", "true", NULL);
		_exit(1);
	}
	must_end_well(child);
	must_send_at(fd, &to, soon(), "parent after vfork");
	close(fd);
}

static void handed_over(void)
{
	int pair[2], fd = timed_socket(to.family, CLOCK_TAI, 0), received;
	char byte = 0;
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec part = { &byte, 1 };
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes) };
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	struct cmsghdr *message = CMSG_FIRSTHDR(&header);
	message->cmsg_level = SOL_SOCKET;
	message->cmsg_type = SCM_RIGHTS;
	message->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(message), &fd, sizeof(int));
	CHECK(sendmsg(pair[0], &header, 0) == 1);
	CHECK(recvmsg(pair[1], &header, 0) == 1);
	memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(int));
	close(fd);
	must_send_at(received, &to, soon(), "handed over");
	close(received);
	close(pair[0]);
	close(pair[1]);
}

int main(int count, char **arguments)
{
	CHECK(count >= 2);
	to = target(arguments[1]);
	if (count == 3) {
		must_send_at(atoi(arguments[2]), &to, soon(), "after exec");
		return 0;
	}
	copies();
	children(arguments[0], arguments[1]);
	handed_over();
	return 0;
}
