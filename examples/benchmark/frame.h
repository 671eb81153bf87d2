/* Ethernet, IPv4 and UDP by hand, for technologies that carry frames. */
#ifndef FRAME_H
#define FRAME_H

#include <arpa/inet.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FRAME_PORT 7600

struct frame {
    struct ether_header ethernet;
    struct iphdr ip;
    struct udphdr udp;
} __attribute__((packed));

/* Who sends, and to whom. */
struct ends {
    uint8_t own[ETH_ALEN], other[ETH_ALEN];
    in_addr_t own_address, other_address;
};

static inline void frame_write(struct frame *frame, const struct ends *ends, size_t length) {
    memcpy(frame->ethernet.ether_dhost, ends->other, ETH_ALEN);
    memcpy(frame->ethernet.ether_shost, ends->own, ETH_ALEN);
    frame->ethernet.ether_type = htons(ETHERTYPE_IP);
    frame->ip = (struct iphdr){.version = 4,
                               .ihl = 5,
                               .tot_len = htons(sizeof *frame - sizeof frame->ethernet + length),
                               .frag_off = htons(IP_DF),
                               .ttl = 64,
                               .protocol = IPPROTO_UDP,
                               .saddr = ends->own_address,
                               .daddr = ends->other_address};
    uint16_t words[sizeof frame->ip / 2];
    memcpy(words, &frame->ip, sizeof words);
    uint32_t sum = 0;
    for (size_t i = 0; i < sizeof words / 2; i++)
        sum += words[i];
    sum = (sum & 0xffff) + (sum >> 16);
    frame->ip.check = ~(sum + (sum >> 16));
    /* A checksum of 0: none (RFC 768). */
    frame->udp = (struct udphdr){.source = htons(FRAME_PORT),
                                 .dest = htons(FRAME_PORT),
                                 .len = htons(sizeof frame->udp + length)};
}

/* The length of the payload, if the frame is one of ours; who sent it is the other end from then on. 0: it is none. */
static inline size_t frame_read(const struct frame *frame, size_t whole, struct ends *ends) {
    if (whole < sizeof *frame || frame->ethernet.ether_type != htons(ETHERTYPE_IP) || frame->ip.ihl != 5 ||
        frame->ip.protocol != IPPROTO_UDP || frame->ip.daddr != ends->own_address ||
        frame->udp.dest != htons(FRAME_PORT))
        return 0;
    size_t length = ntohs(frame->udp.len);
    if (length <= sizeof frame->udp || length - sizeof frame->udp > whole - sizeof *frame)
        return 0;
    memcpy(ends->other, frame->ethernet.ether_shost, ETH_ALEN);
    ends->other_address = frame->ip.saddr;
    return length - sizeof frame->udp;
}

#endif
