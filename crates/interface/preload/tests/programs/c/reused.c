/* A send waits for room; its descriptor is closed meanwhile, and another socket has the number: `reused ADDRESS`. */
#include <pthread.h>
#include <sys/syscall.h>

#include "common.h"

static int fd;
static _Atomic pid_t sender;
static ssize_t result;
static int failed;

static void *send_waiting(void *nothing)
{
	(void)nothing;
	sender = gettid();
	result = send(fd, "for nobody else", 15, 0);
	failed = errno;
	return NULL;
}

/* Whether a thread of this process pauses, and waits for nothing else. */
static int pauses(pid_t thread)
{
	char path[64], text[512] = "";
	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", thread);
	FILE *file = fopen(path, "r");
	CHECK(file && fread(text, 1, sizeof(text) - 1, file) > 0 && fclose(file) == 0);
	return atoi(text) == SYS_clock_nanosleep;
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	fd = timed_socket(to.family, CLOCK_TAI, 0);
	CHECK(connect(fd, (struct sockaddr *)&to.address, to.length) == 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 30 * 1000 * MS;
	fill_timed(&timed, &to, launch, launch, "wait", 4);
	while (sendmsg(fd, &timed.header, MSG_DONTWAIT) >= 0)
		;
	CHECK(errno == EAGAIN);

	struct target here = target("127.0.0.1");
	int other = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(bind(other, (struct sockaddr *)&here.address, here.length) == 0);
	int next = socket(AF_INET, SOCK_DGRAM, 0);
	CHECK(connect(next, (struct sockaddr *)&here.address, here.length) == 0);
	pthread_t thread;
	CHECK(pthread_create(&thread, NULL, send_waiting, NULL) == 0);
	while (sender == 0 || !pauses(sender))
		sched_yield();
	CHECK(close(fd) == 0 && fcntl(next, F_DUPFD, fd) == fd);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(result == -1 && failed == EBADF);
	char text[16];
	CHECK(recv(other, text, sizeof(text), MSG_DONTWAIT) == -1 && errno == EAGAIN);
	return 0;
}
