/* Sends messages by libfabric's TCP that are not Takt's: short, wrong, one that is right, and one that is longer than a
 * frame. Or begins messages that are longer than a frame, and says nothing more.
 * Or holds: begins messages on many connections, each of which leaves halfway.
 * stranger ADDRESS PORT [begin|hold] */

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <errno.h>

#define CONNECTIONS 40
#define HALF 300

/* What has left of halves, by descriptor. */
static size_t left[4096];
static int halving;

/* In the place of libc's, by which the library sends. */
ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct iovec part;
	struct msghdr half = *message;
	ssize_t sent;

	if (!halving || fd >= 4096)
		return syscall(SYS_sendmsg, fd, message, flags);
	if (left[fd] == HALF) {
		errno = EAGAIN;
		return -1;
	}
	part = message->msg_iov[0];
	if (part.iov_len > HALF - left[fd])
		part.iov_len = HALF - left[fd];
	half.msg_iov = &part;
	half.msg_iovlen = 1;
	sent = syscall(SYS_sendmsg, fd, &half, flags);
	if (sent > 0)
		left[fd] += sent;
	return sent;
}

ssize_t send(int fd, const void *data, size_t length, int flags)
{
	struct iovec part = { .iov_base = (void *)data, .iov_len = length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	return sendmsg(fd, &message, flags);
}

static struct fid_ep *endpoint;
static struct fid_cq *queue;

static void send_all(const void *data, size_t length, fi_addr_t to)
{
	struct fi_cq_msg_entry ended;
	ssize_t result;

	do {
		result = fi_send(endpoint, data, length, NULL, to, NULL);
		if (result == -FI_EAGAIN)
			fi_cq_read(queue, &ended, 0);
	} while (result == -FI_EAGAIN);
	if (result)
		exit(3);
	do
		result = fi_cq_read(queue, &ended, 1);
	while (result == -FI_EAGAIN);
	if (result != 1)
		exit(4);
}

/* As many as there are frames, twice over, as far as they are taken. */
static void begin(const void *data, fi_addr_t to)
{
	int refused = 0;

	for (int begun = 0; begun < 600 && refused < 200;) {
		ssize_t result = fi_send(endpoint, data, 16385, NULL, to, NULL);

		if (!result) {
			begun++;
		} else if (result == -FI_EAGAIN) {
			refused++;
			usleep(1000);
		} else {
			break;
		}
	}
	puts("begun");
	fflush(stdout);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	static unsigned char data[1 << 20];
	int holds = argc == 4 && !strcmp(argv[3], "hold");
	struct sockaddr_in peer = { .sin_family = AF_INET };
	struct fi_cq_attr attributes = { .format = FI_CQ_FORMAT_MSG };
	struct fi_av_attr table = { .type = FI_AV_UNSPEC };
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *peers;
	fi_addr_t to;

	if (argc < 3 || !hints)
		return 1;
	inet_pton(AF_INET, argv[1], &peer.sin_addr);
	peer.sin_port = htons(atoi(argv[2]));
	hints->caps = FI_MSG;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->size = 1024;
	hints->fabric_attr->prov_name = strdup("tcp;ofi_rxm");
another:
	if (fi_getinfo(FI_VERSION(1, 17), "127.0.0.5", NULL, FI_SOURCE, hints, &info) ||
	    fi_fabric(info->fabric_attr, &fabric, NULL) || fi_domain(fabric, info, &domain, NULL) ||
	    fi_cq_open(domain, &attributes, &queue, NULL) || fi_av_open(domain, &table, &peers, NULL) ||
	    fi_endpoint(domain, info, &endpoint, NULL) || fi_ep_bind(endpoint, &peers->fid, 0) ||
	    fi_ep_bind(endpoint, &queue->fid, FI_TRANSMIT | FI_RECV) || fi_enable(endpoint) ||
	    fi_av_insert(peers, &peer, 1, &to, 0, NULL) != 1)
		return 2;
	if (holds) {
		static int connections;
		struct fi_cq_msg_entry ended;

		send_all(data, 8, to);
		halving = 1;
		if (fi_send(endpoint, data, 4000, NULL, to, NULL))
			return 5;
		fi_cq_read(queue, &ended, 1);
		halving = 0;
		if (++connections < CONNECTIONS)
			goto another;
		puts("begun");
		fflush(stdout);
		for (;;)
			pause();
	}
	if (argc == 4) {
		send_all(data, 8, to);
		begin(data, to);
	}
	for (int round = 0; round < 100; round++) {
		memset(data, round, 64);
		send_all(data, round % 64, to);
	}
	memcpy(data, "TKF\x01\x00\x04\x00\x09\xc0\x00\x02\x09", 12);
	memset(data + 12, 0, 12);
	memcpy(data + 24, "right", 5);
	send_all(data, 29, to);
	send_all(data, 16385, to);
	for (;;) {
		struct fi_cq_msg_entry ended;

		fi_cq_read(queue, &ended, 1);
		usleep(1000);
	}
}
