// SPDX-License-Identifier: Apache-2.0
/* Nothing but a redirection to a processor: what the balancer is measured beside. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct bpf_cpumap_val);
} plain_cpus SEC(".maps");

SEC("xdp")
int plain(struct xdp_md *ctx)
{
	return bpf_redirect_map(&plain_cpus, 1, 0);
}

char LICENSE[] SEC("license") = "Apache-2.0";
