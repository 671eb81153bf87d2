package cni

import (
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// hold keeps the pod's station at the node's end of its interface, where that is a port of a bridge: a bridge believes the last one that
// sends with an address, and any pod with a raw socket may send with another's. The entry goes with the port.
func hold(device, mac string) error {
	if device == "" {
		return nil
	}
	port, err := netlink.LinkByName(device)
	if err != nil {
		return fmt.Errorf("cannot ask the kernel about %s: %w", device, err)
	}
	if port.Attrs().MasterIndex == 0 {
		return nil
	}
	master, err := netlink.LinkByIndex(port.Attrs().MasterIndex)
	if err != nil {
		return fmt.Errorf("cannot ask the kernel what %s is a port of: %w", device, err)
	}
	if master.Type() != "bridge" {
		return nil
	}
	address, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	// One that is only static moves all the same.
	entry := &netlink.Neigh{
		LinkIndex: port.Attrs().Index, Family: unix.AF_BRIDGE, State: netlink.NUD_NOARP,
		Flags: netlink.NTF_MASTER | netlink.NTF_STICKY, HardwareAddr: address,
	}
	if err := netlink.NeighSet(entry); err != nil {
		return fmt.Errorf("bridge %s does not take an entry of %s at %s: %w", master.Attrs().Name, mac, device, err)
	}
	return nil
}
