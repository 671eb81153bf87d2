/* Error queues: `errors ADDRESS`. */
#include "common.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>

/* More than the node tolerates. */
#define LATE (2000 * MS)

static struct target to;

static void await_error(int fd)
{
	struct pollfd entry = { .fd = fd, .events = 0 };
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
}

/* etf's words for a time that has passed when the datagram is queued. */
static void invalid(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	struct told told;
	int64_t past = now_by(CLOCK_TAI) - LATE;
	CHECK(!read_error(fd, &told));
	must_send_at(fd, &to, past, "never");
	await_error(fd);
	CHECK(read_error(fd, &told));
	CHECK(told.error.ee_errno == EINVAL && told.error.ee_origin == SO_EE_ORIGIN_TXTIME);
	CHECK(told.error.ee_code == SO_EE_CODE_TXTIME_INVALID_PARAM && told.error.ee_type == 0);
	CHECK(told_time(&told) == (uint64_t)past);
	CHECK(!told.stamped);
	/* The packet from its link header on, the payload last. */
	size_t headers = 14 + (to.family == AF_INET ? 28 : 48);
	CHECK(told.length == (ssize_t)(headers + 8 + 5));
	CHECK(memcmp(told.packet + told.length - 5, "never", 5) == 0);
	CHECK(!read_error(fd, &told));

	/* The packet alone, and cut off. */
	must_send_at(fd, &to, past, "never");
	await_error(fd);
	char piece[4];
	CHECK(recv(fd, piece, sizeof(piece), MSG_ERRQUEUE) == 4);
	CHECK(!read_error(fd, &told));
	close(fd);
}

/* Too far ahead, and no time at all: the year 2300, a negative one. */
static void impossible(void)
{
	uint64_t times[] = { 10413792000000000000ULL, (uint64_t)-1, 1, now_by(CLOCK_TAI) + 3600 * 1000 * MS };
	int fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	for (size_t i = 0; i < sizeof(times) / sizeof(*times); i++) {
		struct timed timed;
		struct told told;
		fill_timed(&timed, &to, 0, times[i], "never", 5);
		CHECK(sendmsg(fd, &timed.header, 0) == 13);
		struct pollfd entry = { .fd = fd, .events = 0 };
		CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
		CHECK(read_error(fd, &told));
		CHECK(told.error.ee_code == SO_EE_CODE_TXTIME_INVALID_PARAM);
		CHECK(told_time(&told) == times[i]);
	}
	close(fd);
}

/* Without wishes nothing is told. */
static void silent(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	struct pollfd entry = { .fd = fd, .events = POLLOUT };
	struct told told;
	must_send_at(fd, &to, now_by(CLOCK_TAI) - LATE, "never");
	CHECK(poll(&entry, 1, 20) == 1 && entry.revents == POLLOUT);
	CHECK(!read_error(fd, &told));
	close(fd);
}

static void set_stamps(int fd, int flags)
{
	CHECK(setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof(flags)) == 0);
}

static void must_be_stamped(int fd, int64_t launch, uint32_t number)
{
	struct told told;
	CHECK(read_error(fd, &told));
	CHECK(told.error.ee_errno == ENOMSG && told.error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING);
	CHECK(told.error.ee_info == SCM_TSTAMP_SND && told.stamped);
	CHECK(told.error.ee_data == number);
	/* By CLOCK_REALTIME, and so many whole seconds behind. */
	int64_t leap = (now_by(CLOCK_TAI) - now_by(CLOCK_REALTIME) + 500 * MS) / (1000 * MS) * (1000 * MS);
	int64_t left = told.stamp.tv_sec * 1000000000LL + told.stamp.tv_nsec + leap;
	CHECK(left >= launch && left <= now_by(CLOCK_TAI));
}

/* Time stamps, with every way to wait for them. */
static void stamps(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS);
	int64_t launch;
	set_stamps(fd, SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID |
			       SOF_TIMESTAMPING_OPT_TSONLY);
	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "stamp 0");
	struct pollfd entry = { .fd = fd, .events = POLLIN };
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
	must_be_stamped(fd, launch, 0);
	CHECK(poll(&entry, 1, 0) == 0 && entry.revents == 0);

	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "stamp 1");
	struct timespec patience = { 100, 0 };
	CHECK(ppoll(&entry, 1, &patience, NULL) == 1 && entry.revents == POLLERR);
	must_be_stamped(fd, launch, 1);

	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "stamp 2");
	fd_set read, write;
	FD_ZERO(&read);
	FD_ZERO(&write);
	FD_SET(fd, &read);
	struct timeval timeout = { 100, 0 };
	CHECK(select(fd + 1, &read, NULL, NULL, &timeout) == 1 && FD_ISSET(fd, &read));
	CHECK(timeout.tv_sec < 100);
	must_be_stamped(fd, launch, 2);
	CHECK(pselect(fd + 1, &read, NULL, NULL, &(struct timespec){ 0, MS }, NULL) == 0 && !FD_ISSET(fd, &read));

	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLIN, .data.u64 = 77 };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK(epoll_wait(epoll, &event, 1, 0) == 0);
	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "stamp 3");
	CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.events == EPOLLERR && event.data.u64 == 77);
	must_be_stamped(fd, launch, 3);
	CHECK(epoll_wait(epoll, &event, 1, 5) == 0);

	/* Once for each edge, and once for each arming. */
	event = (struct epoll_event){ .events = EPOLLIN | EPOLLET, .data.u64 = 78 };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "stamp 4");
	CHECK(epoll_pwait(epoll, &event, 1, -1, NULL) == 1 && event.data.u64 == 78);
	CHECK(epoll_wait(epoll, &event, 1, 5) == 0);
	must_be_stamped(fd, launch, 4);
	event = (struct epoll_event){ .events = EPOLLIN | EPOLLONESHOT, .data.u64 = 79 };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event) == 0);
	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "stamp 5");
	CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.data.u64 == 79);
	CHECK(epoll_wait(epoll, &event, 1, 5) == 0);
	must_be_stamped(fd, launch, 5);
	close(epoll);

	/* One that the kernel sends: its stamp has the number that the program counts. */
	CHECK(sendto(fd, &launch, sizeof(launch), 0, (struct sockaddr *)&to.address, to.length) == 8);
	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "stamp 7");
	CHECK(sendto(fd, &launch, sizeof(launch), 0, (struct sockaddr *)&to.address, to.length) == 8);
	uint32_t seen = 0;
	while (seen != (1 << 6 | 1 << 7 | 1 << 8)) {
		struct told told;
		CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
		CHECK(read_error(fd, &told));
		CHECK(told.error.ee_data >= 6 && told.error.ee_data <= 8);
		CHECK(!(seen & 1 << told.error.ee_data));
		seen |= 1 << told.error.ee_data;
	}

	/* A datagram that is late is no datagram that left. */
	must_send_at(fd, &to, now_by(CLOCK_TAI) - LATE, "never");
	struct told told;
	await_error(fd);
	CHECK(read_error(fd, &told));
	CHECK(told.error.ee_origin == SO_EE_ORIGIN_TXTIME);
	CHECK(!read_error(fd, &told));
	close(fd);
}

/* Where the program asks for it, the error queue is urgent data, too; to those that want to know of any. */
static void urgent(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	int64_t launch;
	set_stamps(fd, SOF_TIMESTAMPING_TX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID |
			       SOF_TIMESTAMPING_OPT_TSONLY);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_SELECT_ERR_QUEUE, &(int){ 1 }, sizeof(int)) == 0);
	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "urgent");
	struct pollfd entry = { .fd = fd, .events = POLLPRI };
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == (POLLERR | POLLPRI));
	await_error(fd);
	fd_set except;
	FD_ZERO(&except);
	FD_SET(fd, &except);
	CHECK(select(fd + 1, NULL, NULL, &except, NULL) == 1 && FD_ISSET(fd, &except));
	int epoll = epoll_create1(0);
	struct epoll_event event = { .events = EPOLLPRI };
	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
	CHECK(epoll_wait(epoll, &event, 1, -1) == 1 && event.events == (EPOLLERR | EPOLLPRI));
	close(epoll);
	must_be_stamped(fd, launch, 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_SELECT_ERR_QUEUE, &(int){ 0 }, sizeof(int)) == 0);
	must_send_at(fd, &to, launch = now_by(CLOCK_TAI) + 5 * MS, "not urgent");
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
	CHECK(select(fd + 1, NULL, NULL, &except, &(struct timeval){ 0, 5000 }) == 0 && !FD_ISSET(fd, &except));
	must_be_stamped(fd, launch, 1);
	close(fd);
}

/* The control messages of a datagram that wants a stamp by one of them. */
union wish {
	char bytes[CMSG_SPACE(8) + CMSG_SPACE(4)];
	struct cmsghdr align;
};

static void wish_for_stamp(struct timed *timed, union wish *wish)
{
	memcpy(wish->bytes, timed->control.bytes, CMSG_SPACE(8));
	timed->header.msg_control = wish->bytes;
	timed->header.msg_controllen = sizeof(wish->bytes);
	struct cmsghdr *second = CMSG_NXTHDR(&timed->header, CMSG_FIRSTHDR(&timed->header));
	second->cmsg_level = SOL_SOCKET;
	second->cmsg_type = SO_TIMESTAMPING;
	second->cmsg_len = CMSG_LEN(4);
	memcpy(CMSG_DATA(second), &(uint32_t){ SOF_TIMESTAMPING_TX_SOFTWARE }, 4);
}

/* A stamp by control message alone, with the packet and its ends. */
static void stamp_of_one(void)
{
	if (to.family != AF_INET)
		return;
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	set_stamps(fd, SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_CMSG);
	CHECK(setsockopt(fd, SOL_IP, IP_PKTINFO, &(int){ 1 }, sizeof(int)) == 0);
	struct timed timed;
	int64_t launch = now_by(CLOCK_TAI) + 5 * MS;
	fill_timed(&timed, &to, launch, launch, "one stamp", 9);
	union wish wish = { 0 };
	wish_for_stamp(&timed, &wish);
	CHECK(sendmsg(fd, &timed.header, 0) == 17);
	struct pollfd entry = { .fd = fd, .events = 0 };
	CHECK(poll(&entry, 1, -1) == 1 && entry.revents == POLLERR);
	struct told told;
	CHECK(read_error(fd, &told));
	CHECK(told.stamped && told.length == 14 + 28 + 17 && told.interface > 0);
	CHECK(told.offender.s_addr != 0 && memcmp(&told.offender, told.packet + 26, 4) == 0);
	close(fd);
}

/* Numbers of stamps that messages ask for, also of those that the kernel sends. */
static void numbers_of_some(void)
{
	int fd = timed_socket(to.family, CLOCK_TAI, 0);
	set_stamps(fd, SOF_TIMESTAMPING_SOFTWARE | SOF_TIMESTAMPING_OPT_ID | SOF_TIMESTAMPING_OPT_TSONLY);
	for (uint32_t number = 0; number < 6; number++) {
		struct timed timed;
		int64_t launch = number % 2 ? 0 : now_by(CLOCK_TAI) + 5 * MS;
		fill_timed(&timed, &to, launch, launch, "some", 4);
		union wish wish = { 0 };
		wish_for_stamp(&timed, &wish);
		CHECK(sendmsg(fd, &timed.header, 0) == 12);
		struct told told;
		await_error(fd);
		CHECK(read_error(fd, &told));
		CHECK(told.error.ee_origin == SO_EE_ORIGIN_TIMESTAMPING && told.error.ee_data == number);
		/* Without a wish for it, it has no number. */
		CHECK(sendto(fd, &launch, sizeof(launch), 0, (struct sockaddr *)&to.address, to.length) == 8);
	}
	close(fd);
}

/* Others among the descriptors, and entries that are none. */
static void crowd(void)
{
	int timed = timed_socket(to.family, CLOCK_TAI, SOF_TXTIME_REPORT_ERRORS), pipe_fds[2];
	CHECK(pipe(pipe_fds) == 0);
	CHECK(write(pipe_fds[1], "x", 1) == 1);
	must_send_at(timed, &to, now_by(CLOCK_TAI) - LATE, "never");
	struct pollfd entries[] = { { .fd = pipe_fds[0], .events = POLLIN }, { .fd = -1, .events = POLLIN },
				    { .fd = timed, .events = POLLOUT }, { .fd = timed, .events = 0 } };
	await_error(timed);
	CHECK(poll(entries, 4, -1) == 3);
	CHECK(entries[0].revents == POLLIN && entries[1].revents == 0);
	CHECK(entries[2].revents == (POLLOUT | POLLERR) && entries[3].revents == POLLERR);
	fd_set read, write_set, except;
	FD_ZERO(&read);
	FD_SET(timed, &read);
	FD_SET(pipe_fds[0], &read);
	write_set = except = read;
	FD_CLR(pipe_fds[0], &write_set);
	CHECK(select(1024, &read, &write_set, &except, NULL) == 3);
	CHECK(FD_ISSET(timed, &read) && FD_ISSET(pipe_fds[0], &read) && FD_ISSET(timed, &write_set));
	CHECK(!FD_ISSET(timed, &except));
	/* Wrong arguments stay wrong. */
	void *volatile nowhere = (void *)8, *volatile null = NULL;
	CHECK(poll(nowhere, 1, 0) == -1 && errno == EFAULT);
	CHECK(select(1024, nowhere, NULL, NULL, NULL) == -1 && errno == EFAULT);
	struct timespec wrong = { 0, 1000000000 };
	CHECK(ppoll(entries, 4, &wrong, NULL) == -1 && errno == EINVAL);
	CHECK(epoll_wait(timed, null, 1, 0) == -1);
	close(timed);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

int main(int count, char **arguments)
{
	CHECK(count == 2);
	to = target(arguments[1]);
	invalid();
	impossible();
	silent();
	stamps();
	urgent();
	stamp_of_one();
	numbers_of_some();
	crowd();
	return 0;
}
