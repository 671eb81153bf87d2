/* Messages whose padding is not zero, as musl allows it: `padded ADDRESS`. */
#include "common.h"

/* A message whose structures had something else in them before. */
static void fill_padded(struct timed *timed, const struct target *to, const char *text)
{
	struct timed proper;
	int64_t launch = now_by(CLOCK_TAI) + 5 * MS;
	fill_timed(&proper, to, launch, launch, text, strlen(text));
	memset(timed, 0xff, sizeof(*timed));
	timed->launch = launch;
	timed->parts[0] = (struct iovec){ &timed->launch, sizeof(timed->launch) };
	timed->parts[1] = proper.parts[1];
	timed->header.msg_name = proper.header.msg_name;
	timed->header.msg_namelen = proper.header.msg_namelen;
	timed->header.msg_iov = timed->parts;
	timed->header.msg_iovlen = 2;
	timed->header.msg_control = timed->control.bytes;
	timed->header.msg_controllen = sizeof(timed->control.bytes);
	struct cmsghdr *message = (struct cmsghdr *)timed->control.bytes;
	message->cmsg_level = SOL_SOCKET;
	message->cmsg_type = SCM_TXTIME;
	message->cmsg_len = CMSG_LEN(sizeof(launch));
	memcpy(CMSG_DATA(message), &launch, sizeof(launch));
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	struct target to = target(arguments[1]);
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	struct timed one, two;
	fill_padded(&one, &to, "one");
	CHECK(sendmsg(fd, &one.header, 0) == 11);
	fill_padded(&two, &to, "two");
	struct mmsghdr many;
	memset(&many, 0xff, sizeof(many));
	many.msg_hdr = two.header;
	CHECK(sendmmsg(fd, &many, 1, 0) == 1);
	CHECK(many.msg_len == 11);
	return 0;
}
