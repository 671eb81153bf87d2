/* Descriptors that the program did not open, closed with its own: `closing ADDRESS WAY`. */
#include "common.h"

#include <fcntl.h>

#define MOST 2048

static void close_all(const char *way)
{
	if (!strcmp(way, "close")) {
		for (int fd = 3; fd < MOST; fd++)
			CHECK(close(fd) == 0 || errno == EBADF);
	} else if (!strcmp(way, "close_range")) {
		CHECK(close_range(3, ~0U, 0) == 0);
	} else if (!strcmp(way, "closefrom")) {
		closefrom(3);
	} else {
		CHECK(!strcmp(way, "dup2"));
		/* Every number that is to be had comes to mean something else. */
		for (int fd = 3; fd < MOST; fd++) {
			/* A thread of the preload's may be opening the number at this moment, see dup2(2). */
			while (dup2(0, fd) < 0 && errno == EBUSY)
				;
			CHECK(fcntl(fd, F_GETFD) >= 0 || errno == EBADF);
		}
		for (int fd = 3; fd < MOST; fd++)
			CHECK(close(fd) == 0 || errno == EBADF);
	}
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	struct target to = target(arguments[1]);
	const char *way = arguments[2];
	for (int round = 0; round < 4; round++) {
		int fd = timed_socket(to.family, CLOCK_TAI, 0);
		must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, way);
		close_all(way);
	}
	return 0;
}
