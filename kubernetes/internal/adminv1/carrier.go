package adminv1

import "fmt"

// Carrier is how the network's frames travel, as taktd's configuration has it.
func (n *Network) Carrier() string {
	switch {
	case n.Vxlan != nil:
		return fmt.Sprintf("vxlan:%d", n.GetVxlan())
	case n.Vlan != nil:
		return fmt.Sprintf("vlan:%d", n.GetVlan())
	case n.GetRouted():
		return "routed"
	default:
		return "native"
	}
}
