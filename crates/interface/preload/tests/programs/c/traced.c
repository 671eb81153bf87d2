/* Datagrams to many stations for longer than anything is believed, between two marks: `traced ADDRESS`. */
#include "common.h"

#include <sys/syscall.h>

enum { STATIONS = 40, ROUNDS = 300 };

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	struct sockaddr_in *address = (struct sockaddr_in *)&to.address;
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	/* All are known: ports tell stations apart, which are asked for one by one. */
	for (int i = 0; i < 3 * STATIONS; i++) {
		address->sin_port = htons(6000 + i % STATIONS);
		must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "first");
		pause_ns(10 * MS);
	}
	syscall(SYS_getppid);
	for (int i = 0; i < ROUNDS; i++) {
		address->sin_port = htons(6000 + i % STATIONS);
		must_send_at(fd, &to, now_by(CLOCK_TAI) + 5 * MS, "again");
		pause_ns(10 * MS);
	}
	syscall(SYS_getppid);
	return 0;
}
