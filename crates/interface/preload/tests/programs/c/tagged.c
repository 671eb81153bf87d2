/* A frame with a VLAN tag and a launch time: `tagged STATION VLAN PRIORITY NUMBER`. It says what the call said. */
#include "common.h"

#include <net/ethernet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <sys/ioctl.h>

struct frame {
	struct ether_header link;
	uint16_t control, kind;
	int64_t launch;
	uint32_t number;
	char padding[40];
} __attribute__((packed));

int main(int count, char **arguments)
{
	CHECK(count == 5);
	struct frame frame = { .link.ether_type = htons(0x8100), .kind = htons(0xdead), .number = atoi(arguments[4]) };
	uint8_t *to = frame.link.ether_dhost;
	CHECK(sscanf(arguments[1], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &to[0], &to[1], &to[2], &to[3], &to[4], &to[5]) == 6);
	frame.control = htons(atoi(arguments[3]) << 13 | atoi(arguments[2]));

	int raw = socket(AF_PACKET, SOCK_RAW, 0);
	struct ifreq request = { .ifr_name = "eth0" };
	CHECK(raw >= 0 && ioctl(raw, SIOCGIFHWADDR, &request) == 0);
	memcpy(frame.link.ether_shost, request.ifr_hwaddr.sa_data, 6);
	struct sockaddr_ll bound = { .sll_family = AF_PACKET, .sll_ifindex = if_nametoindex("eth0"), .sll_protocol = htons(ETH_P_ALL) };
	CHECK(bind(raw, (struct sockaddr *)&bound, sizeof(bound)) == 0);
	set_txtime(raw, CLOCK_TAI, 0);

	frame.launch = now_by(CLOCK_TAI) + 50 * MS;
	struct timed timed;
	fill_timed(&timed, NULL, frame.launch, frame.launch, &frame, sizeof(frame));
	timed.parts[0].iov_len = 0;
	ssize_t sent = sendmsg(raw, &timed.header, 0);
	CHECK(sent == sizeof(frame) || sent == -1);
	puts(sent < 0 ? strerrorname_np(errno) : "sent");
	return 0;
}
