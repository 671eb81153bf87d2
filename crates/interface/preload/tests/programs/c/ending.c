/* Datagrams ahead of their times, and then the end in some way: `ending ADDRESS WAY`. */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { COUNT = 20 };

static struct target to;

static void send_all(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	int64_t launch = now_by(CLOCK_TAI) + 700 * MS;
	char text[16];
	for (int i = 0; i < COUNT; i++) {
		snprintf(text, sizeof(text), "%d", i);
		must_send_at(fd, &to, launch + i * MS, text);
	}
}

static void end(const char *way)
{
	if (!strcmp(way, "_exit")) {
		_exit(0);
	} else if (!strcmp(way, "exit")) {
		exit(0);
	} else if (!strcmp(way, "exec")) {
		execl("/bin/true", "true", NULL);
	} else if (!strcmp(way, "term")) {
		raise(SIGTERM);
	} else if (!strcmp(way, "kill")) {
		raise(SIGKILL);
	} else if (strcmp(way, "abort")) {
		fprintf(stderr, "no way %s\n", way);
		exit(1);
	}
	abort();
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	to = target(arguments[1]);
	if (!strcmp(arguments[2], "child")) {
		/* A parent with a session of its own, as multiprocessing has it. */
		int fd = timed_socket(to.family, CLOCK_TAI, 0);
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			send_all();
			_exit(0);
		}
		int status;
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		close(fd);
		return 0;
	}
	send_all();
	end(arguments[2]);
	return 0;
}
