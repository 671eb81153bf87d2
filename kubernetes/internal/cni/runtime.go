package cni

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/takt-dev/takt/kubernetes/internal/adminv1"
)

// patience is how long taktd may take for an answer.
const patience = 10 * time.Second

// errorRefused is the plugin's own error code: taktd does not take the attachment.
const errorRefused uint = 100

// longestAnswer is what admin.proto asks clients to accept.
const longestAnswer = 64 << 20

// away means that nobody serves taktd's socket.
type away struct{ told *types.Error }

func (a away) Error() string { return a.told.Error() }
func (a away) Unwrap() error { return a.told }

func isAway(err error) bool { return errors.As(err, &away{}) }

// taktd is the node's runtime.
type taktd struct {
	socket     string
	connection *grpc.ClientConn
	admin      adminv1.AdminClient
}

func (c *Config) taktd() (*taktd, error) {
	connection, err := grpc.NewClient("unix:"+c.AdminSocket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(longestAnswer)))
	if err != nil {
		return nil, invalid("adminSocket %q cannot be used: %v", c.AdminSocket, err)
	}
	return &taktd{c.AdminSocket, connection, adminv1.NewAdminClient(connection)}, nil
}

// asked is the node's runtime, and its answer whether it has the network, which comes once.
type asked struct {
	*taktd
	answer <-chan error
}

func (c *Config) ask() (*asked, error) {
	runtime, err := c.taktd()
	if err != nil {
		return nil, err
	}
	answer := make(chan error, 1)
	go func() { answer <- runtime.network(c) }()
	return &asked{runtime, answer}, nil
}

func (t *taktd) close() { t.connection.Close() }

// told is an error of the admin API as one of CNI.
func (t *taktd) told(err error) error {
	if err == nil {
		return nil
	}
	said := status.Convert(err)
	switch said.Code() {
	case codes.Unavailable:
		return away{types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("taktd does not answer at %s: start it, or name its socket in adminSocket", t.socket), said.Message())}
	case codes.DeadlineExceeded, codes.Canceled:
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("taktd does not answer at %s within %v: see its log, or restart it", t.socket, patience), "")
	case codes.Unimplemented:
		return types.NewError(errorRefused, "taktd is older than this plugin: install the same version of both", said.Message())
	default:
		return types.NewError(errorRefused, "taktd refuses: "+said.Message(), "")
	}
}

// set opens the pod's socket, to be opened again whenever taktd starts.
func (t *taktd) set(listener *adminv1.Listener) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := t.admin.SetListener(ctx, &adminv1.SetListenerRequest{Listener: listener, Keep: true})
	return t.told(err)
}

func (t *taktd) remove(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := t.admin.RemoveListener(ctx, &adminv1.RemoveListenerRequest{Path: path})
	return t.told(err)
}

// listener is what is set at the path; nil if nothing is.
func (t *taktd) listener(path string) (*adminv1.Listener, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := t.admin.ListListeners(ctx, &adminv1.ListListenersRequest{})
	if err != nil {
		return nil, t.told(err)
	}
	for _, one := range all.GetListeners() {
		if one.GetListener().GetPath() == path {
			return one.GetListener(), nil
		}
	}
	return nil, nil
}

// network checks that taktd has the network as the configuration demands it.
func (t *taktd) network(c *Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := t.admin.ListNetworks(ctx, &adminv1.ListNetworksRequest{})
	if err != nil {
		return t.told(err)
	}
	at := slices.IndexFunc(all.GetNetworks(), func(n *adminv1.Network) bool { return n.GetName() == c.Network })
	if at < 0 {
		return invalid("network %q: taktd has none of this name: add a [[network]] to its configuration and restart it", c.Network)
	}
	found := all.GetNetworks()[at]
	if problem := found.GetProblem(); problem != "" {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("network %q: %s", c.Network, problem), "")
	}
	for _, demand := range []struct {
		key    string
		wanted *uint32
		is     *uint32
	}{{"vxlan", c.VXLAN, found.Vxlan}, {"vlan", c.VLAN, found.Vlan}} {
		if demand.wanted == nil {
			continue
		}
		if demand.is == nil || *demand.is != *demand.wanted {
			return invalid("%s %d: network %q of taktd is %s: correct one of both", demand.key, *demand.wanted, c.Network, found.Carrier())
		}
	}
	return nil
}

// listener is what the pod may do.
func (c *Config) listener(at attachment, identity string, of *adminv1.Endpoint) *adminv1.Listener {
	of.Network, of.Ethertypes, of.Vlans = c.Network, c.EtherTypes, c.VLANs
	return &adminv1.Listener{
		Path: at.socket(),
		// Whoever is in the pod: nobody else sees the directory.
		Mode: 0o666, Identity: identity,
		Write: c.write, Read: c.read, Classes: c.Classes,
		MessagesPerSecond: c.MessagesPerSecond, BytesPerSecond: c.BytesPerSecond,
		MemoryBytes: c.MemoryBytes, TotalMemoryBytes: c.TotalMemoryBytes, Sessions: c.Sessions,
		Endpoint: of,
	}
}

// same says whether what is set has the place in the network that is wanted, and no classes but those that are: takt-node
// takes from a pod what its namespace may not use, and gives it those of streams that it has claimed.
func same(is, wanted *adminv1.Listener) bool {
	return proto.Equal(is.GetEndpoint(), wanted.GetEndpoint()) &&
		!slices.ContainsFunc(is.GetClasses(), func(class uint32) bool {
			return !slices.Contains(wanted.GetClasses(), class) &&
				!slices.ContainsFunc(is.GetStreams(), func(s *adminv1.DeclaredStream) bool { return s.GetTrafficClass() == class })
		})
}
