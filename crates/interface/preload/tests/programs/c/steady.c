/* A datagram each millisecond, 50 ms ahead, until it is killed: `steady ADDRESS`. */
#include "common.h"

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	for (;;) {
		must_send_at(fd, &to, now_by(CLOCK_TAI) + 50 * MS, "steady");
		pause_ns(MS);
	}
}
