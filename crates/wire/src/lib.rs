//! Packet formats: Ethernet, 802.1Q, ARP, IPv4, IPv6, UDP, VXLAN and the Takt channel header
