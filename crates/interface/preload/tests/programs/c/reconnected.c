/* Sockets that are connected elsewhere, or no more, while what they have sent waits for its next hop: `reconnected LATE PRESENT`. */
#include "common.h"

/* From a socket that is connected to somebody whose hardware address nobody knows; tells its port. */
static int sent_to(const struct target *late, int64_t launch, const char *text)
{
	int fd = timed_socket(late->family, CLOCK_TAI, 0);
	CHECK(connect(fd, (struct sockaddr *)&late->address, late->length) == 0);
	must_send_at(fd, NULL, launch, text);
	struct sockaddr_in own;
	socklen_t length = sizeof(own);
	CHECK(getsockname(fd, (struct sockaddr *)&own, &length) == 0);
	printf("%d ", ntohs(own.sin_port));
	return fd;
}

int main(int count, char **arguments)
{
	CHECK(count == 3);
	struct target late = target(arguments[1]), other = target(arguments[2]);
	/* Nobody is there. */
	((struct sockaddr_in *)&other.address)->sin_port = htons(PORT + 1);
	int64_t launch = now_by(CLOCK_TAI) + 10000 * MS;
	int first = sent_to(&late, launch, "first"), second = sent_to(&late, launch + MS, "second");
	CHECK(connect(first, (struct sockaddr *)&other.address, other.length) == 0);
	must_send_at(first, NULL, now_by(CLOCK_TAI) + MS, "nobody");
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	CHECK(connect(second, &nobody, sizeof(nobody)) == 0);
	puts("elsewhere");
	fflush(stdout);
	pause();
	return 0;
}
