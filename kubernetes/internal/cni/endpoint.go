package cni

import (
	"errors"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// endpoint is what the pod may send from: the addresses that the plugins before gave to its interface, as they are in
// the pod's network namespace; and the device of this one at the other end of the interface, empty if it is no veth.
func endpoint(path, ifname string, result *types100.Result) (of *adminv1.Endpoint, device string, err error) {
	name, addresses, err := ofInterface(ifname, result)
	if err != nil {
		return nil, "", err
	}
	if len(addresses) == 0 {
		return nil, "", invalid("interface %s has no IP address: configure an IPAM plugin", name)
	}
	handle, err := inside(path)
	if err != nil {
		return nil, "", err
	}
	defer handle.Close()
	link, err := handle.LinkByName(name)
	if err != nil {
		return nil, "", invalid("the pod has no interface %s: %v; a plugin before this one must make it, or name one in delegate", name, err)
	}
	mac := link.Attrs().HardwareAddr
	if len(mac) != 6 {
		return nil, "", invalid("interface %s has no Ethernet address", name)
	}
	there, err := handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, "", failure("cannot ask the kernel about the pod's addresses", err)
	}
	found := &adminv1.Endpoint{Mac: mac.String(), Mtu: uint32(link.Attrs().MTU)}
	for _, address := range addresses {
		if !has(there, address.IP) {
			return nil, "", invalid("interface %s has not the address %s that it was given: another plugin has removed it", name, address.IP)
		}
		found.Addresses = append(found.Addresses, address.String())
	}
	return found, otherEnd(handle, link), nil
}

// inside asks the kernel about the network namespace at a path.
func inside(path string) (*netlink.Handle, error) {
	namespace, err := netns.GetFromPath(path)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetNS, "cannot open the network namespace "+path+": "+err.Error(), "")
	}
	defer namespace.Close()
	var kind unix.Statfs_t
	if err := unix.Fstatfs(int(namespace), &kind); err != nil || kind.Type != unix.NSFS_MAGIC {
		return nil, types.NewError(types.ErrInvalidNetNS, path+" is no network namespace", "")
	}
	handle, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, failure("cannot ask the kernel about the pod's interfaces", err)
	}
	return handle, nil
}

// exists says whether the pod has an interface of this name.
func exists(path, ifname string) (bool, error) {
	handle, err := inside(path)
	if err != nil {
		return false, err
	}
	defer handle.Close()
	_, err = handle.LinkByName(ifname)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, failure("cannot ask the kernel about the pod's interfaces", err)
	}
	return true, nil
}

// otherEnd is the device of this network namespace at the other end of a pod's veth; empty if there is none.
func otherEnd(pod *netlink.Handle, link netlink.Link) string {
	if link.Type() != "veth" {
		return ""
	}
	own, err := netns.Get()
	if err != nil {
		return ""
	}
	defer own.Close()
	// The number of the peer is one of the namespace that the pod's knows by this number.
	known, err := pod.GetNetNsIdByFd(int(own))
	if err != nil || known != link.Attrs().NetNsID {
		return ""
	}
	peer, err := netlink.LinkByIndex(link.Attrs().ParentIndex)
	if err != nil || peer.Type() != "veth" {
		return ""
	}
	return peer.Attrs().Name
}

// ofInterface is the pod's interface and its addresses, as a result tells them.
func ofInterface(ifname string, result *types100.Result) (string, []net.IPNet, error) {
	// Some plugins name no interfaces: it is the one that the container runtime asked for.
	name, at := ifname, -1
	for i, link := range result.Interfaces {
		if link.Sandbox != "" && (at < 0 || link.Name == ifname) {
			name, at = link.Name, i
		}
	}
	var addresses []net.IPNet
	for _, ip := range result.IPs {
		if ip.Interface == nil || *ip.Interface == at {
			addresses = append(addresses, ip.Address)
		}
	}
	return name, addresses, nil
}

func has(addresses []netlink.Addr, ip net.IP) bool {
	for _, address := range addresses {
		if address.IP.Equal(ip) {
			return true
		}
	}
	return false
}
