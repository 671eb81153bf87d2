/* libfabric's functions are inline ones over tables of pointers: this makes them functions that can be linked, and
 * spares Rust the layout of its structures. Errors are libfabric's, negative. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>

#define VERSION FI_VERSION(1, 17)
/* Completions that one call reads. */
#define BURST 16

/* What is asked of a provider, and what it has answered. */
struct takt_fabric_request {
	const char *provider;
	/* Of one network interface or device; null: any. */
	const char *domain;
	/* Address to listen at, as the provider has it; null: none yet. */
	const void *address;
	uint64_t address_length;
	uint64_t receives;
	uint64_t sends;
	/* 0: any. */
	uint32_t format;
};

struct takt_fabric_traits {
	char provider[64];
	char domain[64];
	uint64_t inject;
	uint64_t longest;
	uint64_t receives;
	uint64_t sends;
	uint32_t format;
	/* Memory has to be registered. */
	uint8_t registered;
	/* The queue of completions has a descriptor. */
	uint8_t waits;
};

/* What has ended. */
struct takt_fabric_done {
	void *context;
	uint64_t length;
	/* 0, or positive as errno. */
	int32_t error;
	/* A receive, not a send. */
	uint32_t received;
};

struct takt_fabric {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_av *peers;
	struct fid_cq *queue;
	struct fid_ep *endpoint;
	struct fid_mr *memory;
	void *descriptor;
	int fd;
};

static void prepare(void)
{
	/* TCP's provider would put what a full socket does not take into a buffer, and say that it has been sent: nobody
	 * would know that it is still to be looked after. */
	setenv("FI_TCP_STAGING_SBUF_SIZE", "0", 0);
	/* Messages of the layer's own protocol can be ones of which the receiver is to read the rest: a frame is kept for
	 * each until the sender, whoever it is, has answered. TCP needs no such protocol. */
	setenv("FI_OFI_RXM_ENABLE_PASSTHRU", "1", 1);
}

/* Whether it is what was asked for: some providers do not mind which domain it is, and the layer over TCP may add a
 * protocol of its own. */
static int fits(const struct takt_fabric_request *request, const struct fi_info *info)
{
	if (!strcmp(request->provider, "tcp;ofi_rxm") && info->ep_attr->protocol != FI_PROTO_RXM_TCP)
		return 0;
	return !request->domain ||
	       (info->domain_attr->name && !strcmp(info->domain_attr->name, request->domain));
}

static int find(const struct takt_fabric_request *request, struct fi_info **info)
{
	struct fi_info *hints = fi_allocinfo(), *found, *each;
	static pthread_once_t prepared = PTHREAD_ONCE_INIT;
	int result;

	if (!hints)
		return -FI_ENOMEM;
	pthread_once(&prepared, prepare);
	hints->caps = FI_MSG;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->addr_format = request->format;
	hints->ep_attr->type = FI_EP_RDM;
	hints->tx_attr->msg_order = FI_ORDER_SAS;
	hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->tx_attr->size = request->sends;
	hints->rx_attr->size = request->receives;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_ALLOCATED | FI_MR_VIRT_ADDR | FI_MR_PROV_KEY;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->fabric_attr->prov_name = strdup(request->provider);
	if (request->domain)
		hints->domain_attr->name = strdup(request->domain);
	if (request->address && request->format != FI_ADDR_STR) {
		hints->src_addr = malloc(request->address_length);
		if (hints->src_addr) {
			memcpy(hints->src_addr, request->address, request->address_length);
			hints->src_addrlen = request->address_length;
		}
	}
	result = fi_getinfo(VERSION, NULL, NULL, 0, hints, &found);
	fi_freeinfo(hints);
	if (result)
		return result;
	for (each = found; each && !fits(request, each); each = each->next)
		;
	*info = each ? fi_dupinfo(each) : NULL;
	fi_freeinfo(found);
	if (each)
		return *info ? 0 : -FI_ENOMEM;
	return -FI_ENODATA;
}

static void describe(const struct fi_info *info, struct takt_fabric_traits *traits)
{
	memset(traits, 0, sizeof(*traits));
	if (info->fabric_attr->prov_name)
		snprintf(traits->provider, sizeof(traits->provider), "%s", info->fabric_attr->prov_name);
	if (info->domain_attr->name)
		snprintf(traits->domain, sizeof(traits->domain), "%s", info->domain_attr->name);
	traits->inject = info->tx_attr->inject_size;
	traits->longest = info->ep_attr->max_msg_size;
	traits->receives = info->rx_attr->size;
	traits->sends = info->tx_attr->size;
	traits->format = info->addr_format;
	traits->registered = (info->domain_attr->mr_mode & FI_MR_LOCAL) != 0;
}

int takt_fabric_probe(const struct takt_fabric_request *request, struct takt_fabric_traits *traits)
{
	struct fi_info *info;
	int result = find(request, &info);

	if (result)
		return result;
	describe(info, traits);
	fi_freeinfo(info);
	return 0;
}

void takt_fabric_close(struct takt_fabric *fabric)
{
	if (fabric->endpoint)
		fi_close(&fabric->endpoint->fid);
	if (fabric->memory)
		fi_close(&fabric->memory->fid);
	if (fabric->peers)
		fi_close(&fabric->peers->fid);
	if (fabric->queue)
		fi_close(&fabric->queue->fid);
	if (fabric->domain)
		fi_close(&fabric->domain->fid);
	if (fabric->fabric)
		fi_close(&fabric->fabric->fid);
	if (fabric->info)
		fi_freeinfo(fabric->info);
	free(fabric);
}

/* `step` is what has failed. */
int takt_fabric_open(const struct takt_fabric_request *request, void *memory, uint64_t length,
		     struct takt_fabric_traits *traits, struct takt_fabric **opened, const char **step)
{
	struct takt_fabric *fabric = calloc(1, sizeof(*fabric));
	struct fi_cq_attr queue = { .format = FI_CQ_FORMAT_MSG };
	struct fi_av_attr peers = { .type = FI_AV_UNSPEC };
	int result;

	*step = "find";
	if (!fabric)
		return -FI_ENOMEM;
	fabric->fd = -1;
	result = find(request, &fabric->info);
	if (result)
		goto failed;
	describe(fabric->info, traits);
	*step = "open the fabric";
	result = fi_fabric(fabric->info->fabric_attr, &fabric->fabric, NULL);
	if (result)
		goto failed;
	*step = "open the domain";
	result = fi_domain(fabric->fabric, fabric->info, &fabric->domain, NULL);
	if (result)
		goto failed;
	if (traits->registered) {
		*step = "register memory";
		result = fi_mr_reg(fabric->domain, memory, length, FI_SEND | FI_RECV, 0, 0, 0, &fabric->memory,
				   NULL);
		if (result)
			goto failed;
		fabric->descriptor = fi_mr_desc(fabric->memory);
	}
	*step = "open the queue of completions";
	queue.size = request->receives + request->sends + 64;
	queue.wait_obj = FI_WAIT_FD;
	result = fi_cq_open(fabric->domain, &queue, &fabric->queue, NULL);
	if (result) {
		queue.wait_obj = FI_WAIT_NONE;
		result = fi_cq_open(fabric->domain, &queue, &fabric->queue, NULL);
	} else if (fi_control(&fabric->queue->fid, FI_GETWAIT, &fabric->fd)) {
		fabric->fd = -1;
	}
	if (result)
		goto failed;
	traits->waits = fabric->fd >= 0;
	*step = "open the table of peers";
	result = fi_av_open(fabric->domain, &peers, &fabric->peers, NULL);
	if (result)
		goto failed;
	*step = "open the endpoint";
	result = fi_endpoint(fabric->domain, fabric->info, &fabric->endpoint, NULL);
	if (result)
		goto failed;
	if (request->address && request->format == FI_ADDR_STR) {
		result = fi_setname(&fabric->endpoint->fid, (void *)request->address, request->address_length);
		if (result)
			goto failed;
	}
	result = fi_ep_bind(fabric->endpoint, &fabric->peers->fid, 0);
	if (result)
		goto failed;
	result = fi_ep_bind(fabric->endpoint, &fabric->queue->fid, FI_TRANSMIT | FI_RECV);
	if (result)
		goto failed;
	*step = "enable the endpoint";
	result = fi_enable(fabric->endpoint);
	if (result)
		goto failed;
	*opened = fabric;
	return 0;
failed:
	takt_fabric_close(fabric);
	return result;
}

int takt_fabric_name(struct takt_fabric *fabric, void *address, uint64_t room)
{
	size_t length = room;

	return fi_getname(&fabric->endpoint->fid, address, &length);
}

int takt_fabric_fd(const struct takt_fabric *fabric)
{
	return fabric->fd;
}

/* 0: nothing waits, and the descriptor will tell. */
int takt_fabric_try_wait(struct takt_fabric *fabric)
{
	struct fid *queue = &fabric->queue->fid;

	return fi_trywait(fabric->fabric, &queue, 1);
}

int takt_fabric_insert(struct takt_fabric *fabric, const void *address, uint64_t *peer)
{
	fi_addr_t inserted = FI_ADDR_NOTAVAIL;
	int count = fi_av_insert(fabric->peers, address, 1, &inserted, 0, NULL);

	if (count < 0)
		return count;
	if (count != 1 || inserted == FI_ADDR_NOTAVAIL)
		return -FI_EINVAL;
	*peer = inserted;
	return 0;
}

int takt_fabric_remove(struct takt_fabric *fabric, uint64_t peer)
{
	fi_addr_t removed = peer;

	return fi_av_remove(fabric->peers, &removed, 1, 0);
}

int64_t takt_fabric_inject(struct takt_fabric *fabric, uint64_t peer, const void *data, uint64_t length)
{
	return fi_inject(fabric->endpoint, data, length, peer);
}

int64_t takt_fabric_send(struct takt_fabric *fabric, uint64_t peer, const void *data, uint64_t length, void *context,
			 int more)
{
	struct iovec part = { .iov_base = (void *)data, .iov_len = length };
	struct fi_msg message = {
		.msg_iov = &part, .desc = &fabric->descriptor, .iov_count = 1, .addr = peer, .context = context,
	};

	if (!more)
		return fi_send(fabric->endpoint, data, length, fabric->descriptor, peer, context);
	return fi_sendmsg(fabric->endpoint, &message, FI_COMPLETION | FI_MORE);
}

int64_t takt_fabric_post(struct takt_fabric *fabric, void *data, uint64_t length, void *context, int more)
{
	struct iovec part = { .iov_base = data, .iov_len = length };
	struct fi_msg message = {
		.msg_iov = &part, .desc = &fabric->descriptor, .iov_count = 1, .addr = FI_ADDR_UNSPEC,
		.context = context,
	};

	return fi_recvmsg(fabric->endpoint, &message, FI_COMPLETION | (more ? FI_MORE : 0));
}

/* What is posted ends at once, unless a message has it. */
void takt_fabric_cancel(struct takt_fabric *fabric, void *context)
{
	fi_cancel(&fabric->endpoint->fid, context);
}

/* How many have ended, at most BURST; negative: the queue is of no use any more. */
int64_t takt_fabric_read(struct takt_fabric *fabric, struct takt_fabric_done *done, uint64_t room)
{
	struct fi_cq_msg_entry entries[BURST];
	struct fi_cq_err_entry error = { 0 };
	ssize_t count = fi_cq_read(fabric->queue, entries, room < BURST ? room : BURST);

	if (count == -FI_EAGAIN || count == -FI_EINTR)
		return 0;
	if (count == -FI_EAVAIL) {
		count = fi_cq_readerr(fabric->queue, &error, 0);
		if (count == -FI_EAGAIN || count == 0)
			return 0;
		if (count < 0)
			return count;
		done->context = error.op_context;
		done->length = error.len;
		done->error = error.err > 0 ? error.err : FI_EIO;
		done->received = (error.flags & FI_RECV) != 0;
		return 1;
	}
	for (ssize_t index = 0; index < count; index++) {
		done[index].context = entries[index].op_context;
		done[index].length = entries[index].len;
		done[index].error = 0;
		done[index].received = (entries[index].flags & FI_RECV) != 0;
	}
	return count;
}

const char *takt_fabric_error(int error)
{
	return fi_strerror(error < 0 ? -error : error);
}

uint32_t takt_fabric_version(void)
{
	return fi_version();
}

void takt_fabric_sizes(uint64_t *sizes)
{
	sizes[0] = sizeof(struct takt_fabric_request);
	sizes[1] = sizeof(struct takt_fabric_traits);
	sizes[2] = sizeof(struct takt_fabric_done);
	sizes[3] = BURST;
	sizes[4] = sizeof(struct fi_context2);
	sizes[5] = FI_SOCKADDR_IN;
	sizes[6] = FI_SOCKADDR_IN6;
	sizes[7] = FI_ADDR_STR;
}
