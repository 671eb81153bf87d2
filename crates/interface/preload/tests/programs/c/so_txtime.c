/*
 * The logic of the kernel's test of SO_TXTIME (tools/testing/selftests/net/so_txtime.c), written anew: a list of
 * letters with the time after which each is to leave, in milliseconds; -1 for none. It tells the instant
 * that the times count from, waits until all have left or been refused and so many errors are told, and prints what the error
 * queue said.
 *
 * so_txtime CLOCK ADDRESS LETTER,DELAY[,LETTER,DELAY...] [ERRORS]
 */
#include "common.h"

int main(int count, char **arguments)
{
	CHECK(count == 4 || count == 5);
	clockid_t clock = strcmp(arguments[1], "tai") == 0 ? CLOCK_TAI : CLOCK_MONOTONIC;
	struct target to = target(arguments[2]);
	int fd = socket(to.family, SOCK_DGRAM, 0);
	CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to.address, to.length) == 0);
	set_txtime(fd, clock, SOF_TXTIME_REPORT_ERRORS);

	int64_t start = now_by(clock), longest = 0;
	for (char *word = strtok(arguments[3], ","); word; word = strtok(NULL, ",")) {
		char letter = word[0];
		int64_t delay = strtoll(strtok(NULL, ","), NULL, 10) * MS;
		uint64_t time = start + delay;
		struct iovec part = { &letter, 1 };
		char control[CMSG_SPACE(sizeof(time))] = { 0 };
		struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
		if (delay != -1 * MS) {
			header.msg_control = control;
			header.msg_controllen = sizeof(control);
			struct cmsghdr *message = CMSG_FIRSTHDR(&header);
			message->cmsg_level = SOL_SOCKET;
			message->cmsg_type = SCM_TXTIME;
			message->cmsg_len = CMSG_LEN(sizeof(time));
			memcpy(CMSG_DATA(message), &time, sizeof(time));
		}
		CHECK(sendmsg(fd, &header, 0) == 1);
		longest = delay > longest ? delay : longest;
	}
	struct told told;
	int awaited = count == 5 ? atoi(arguments[4]) : 0;
	for (;;) {
		int over = awaited <= 0 && now_by(clock) > start + longest + 20 * MS;
		if (!read_error(fd, &told)) {
			if (over)
				break;
			pause_ns(MS);
			continue;
		}
		awaited--;
		CHECK(told.error.ee_origin == SO_EE_ORIGIN_TXTIME);
		printf("%c %s\n", told.packet[told.length - 1],
		       told.error.ee_code == SO_EE_CODE_TXTIME_INVALID_PARAM ? "invalid" : "missed");
	}
	return 0;
}
