/* Sends more than can wait: `full ADDRESS`. */
#include "common.h"

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0), sent = 0;
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 30 * 1000 * MS;
	fill_timed(&timed, &to, launch, launch, "wait", 4);
	while (sendmsg(fd, &timed.header, MSG_DONTWAIT) >= 0)
		CHECK(++sent < 100000);
	CHECK(errno == EAGAIN && sent > 0);
	/* A socket that may block does so as long as it is allowed to. */
	struct timeval timeout = { 0, 20000 };
	CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)) == 0);
	int64_t begun = now_by(CLOCK_MONOTONIC);
	CHECK(sendmsg(fd, &timed.header, 0) == -1 && errno == EAGAIN);
	CHECK(now_by(CLOCK_MONOTONIC) - begun >= 20 * MS);
	/* What has no time is not held up. */
	launch = now_by(CLOCK_TAI);
	CHECK(sendto(fd, &launch, sizeof(launch), 0, (struct sockaddr *)&to.address, to.length) == 8);
	return 0;
}
