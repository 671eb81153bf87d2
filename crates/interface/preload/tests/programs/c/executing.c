/* Messages that wait for a next hop while the program becomes another one: `executing ADDRESS WAY`. */
#include "common.h"

#include <fcntl.h>
#include <sys/syscall.h>

extern char **environ;

int main(int count, char **arguments)
{
	if (count == 13) {
		/* The other one: all twelve are there, in their order. */
		for (int i = 1; i < count; i++)
			CHECK(atoi(arguments[i]) == i);
		CHECK(getenv("LD_PRELOAD"));
		return 0;
	}
	CHECK(count == 3);
	struct target to = target(arguments[1]);
	const char *way = arguments[2], *self = arguments[0];
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	int64_t launch = now_by(CLOCK_TAI) + 600 * MS;
	for (int i = 0; i < 3; i++) {
		char text[8];
		snprintf(text, sizeof(text), "held %d", i);
		must_send_at(fd, &to, launch + i, text);
	}
#define LIST self, "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", (char *)NULL
	char *list[] = { (char *)LIST };
	if (!strcmp(way, "execl"))
		execl(self, LIST);
	else if (!strcmp(way, "execlp"))
		execlp(self, LIST);
	else if (!strcmp(way, "execle"))
		execle(self, LIST, environ);
#ifdef __GLIBC__ /* musl has no such function */
	else if (!strcmp(way, "execveat"))
		execveat(AT_FDCWD, self, list, environ, 0);
#endif
	else if (!strcmp(way, "fexecve"))
		fexecve(open(self, O_RDONLY | O_CLOEXEC), list, environ);
	CHECK(!"it is another one");
}
