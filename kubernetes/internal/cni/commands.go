// Package cni attaches pods to a network of Takt, as the Container Network Interface 1.1.0 has it.
//
// What the pod gets is a socket of the node's taktd that is its identity: from there it may send frames with the
// addresses of its interface, in the classes of the network, at launch times. The interface itself is made by the
// plugins before this one (chained, so that the pod's primary network becomes time-aware), or by one that this plugin
// delegates to.
//
// Not here: how the socket comes into the container (package node).
package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/takt-dev/takt/kubernetes/internal/quote"
)

// validAttachments is the key of GC by which the container runtime says what is to stay.
const validAttachments = "cni.dev/valid-attachments"

// Main answers the command that the environment names, and ends the process.
func Main(about string) {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: bounded(add), Del: bounded(del), Check: bounded(check), GC: bounded(collect), Status: bounded(report)},
		version.PluginSupports("0.4.0", "1.0.0", "1.1.0"), about)
}

// bounded has a command fail in as many words as a log and an event have room for: the container runtime repeats them.
func bounded(command func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		err := command(args)
		var told *types.Error
		if errors.As(err, &told) {
			return types.NewError(told.Code, quote.Text(told.Msg), quote.Text(told.Details))
		}
		return quote.Error(err)
	}
}

// chained returns what the plugins before have made; there must be something.
func (c *Config) chained() (*types100.Result, error) {
	if c.previous == nil {
		return nil, invalid("there is no interface to attach: put this plugin behind the one that makes it (chained), or name one in delegate")
	}
	return c.previous, nil
}

func add(args *skel.CmdArgs) (err error) {
	c, err := load(args.StdinData)
	if err != nil {
		return err
	}
	if c.Delegate != nil && c.PrevResult != nil {
		return invalid("delegate: the plugins before this one have made the interface: remove delegate, or make this plugin the first")
	}
	selected, err := c.selects()
	if err != nil {
		return err
	}
	var node *asked
	if selected {
		// While the interface is made, or looked at.
		if node, err = c.ask(); err != nil {
			return err
		}
		defer node.close()
	}
	at := c.attachment(args.ContainerID, args.IfName)
	unlock, err := at.lock()
	if err != nil {
		return err
	}
	defer unlock()

	// What an earlier ADD has made is not this one's to undo.
	was := at.complete()
	var undo []func() error
	defer func() {
		if err == nil {
			return
		}
		for _, step := range slices.Backward(undo) {
			if failed := step(); failed != nil {
				fmt.Fprintln(os.Stderr, "takt-cni: cannot undo:", failed)
			}
		}
	}()
	var made types.Result = c.PrevResult
	result := c.previous
	if c.Delegate != nil {
		// Plugins differ in what they leave when the interface is there, and their DEL would remove it.
		there, err := exists(args.Netns, args.IfName)
		if err != nil {
			return err
		}
		if was || there {
			return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_IFNAME %s: an ADD of before has made this interface of container %s: call DEL first", args.IfName, args.ContainerID), "")
		}
		conf, err := c.delegated(args.StdinData)
		if err != nil {
			return err
		}
		undo = append(undo, func() error { return invoke.DelegateDel(context.Background(), c.delegateType, conf, nil) })
		if made, err = invoke.DelegateAdd(context.Background(), c.delegateType, conf, nil); err != nil {
			return delegateFailed(c, err)
		}
		if result, err = types100.NewResultFromResult(made); err != nil {
			return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("the result of %s cannot be read: %v", c.delegateType, err), "")
		}
	} else if result, err = c.chained(); err != nil {
		return err
	}
	if selected {
		if !was {
			undo = append(undo, func() error { return c.detach(at) })
		}
		if err := c.attach(args, at, result, node); err != nil {
			if c.Runtime == RuntimeRequired || !isAway(err) {
				return err
			}
			fmt.Fprintln(os.Stderr, "takt-cni: the pod is not time-aware:", err)
			if was {
				return types.PrintResult(made, c.CNIVersion)
			}
			if err := c.detach(at); err != nil {
				return err
			}
		}
	}
	return types.PrintResult(made, c.CNIVersion)
}

// attach gives the pod its place in the network.
func (c *Config) attach(args *skel.CmdArgs, at attachment, result *types100.Result, node *asked) error {
	of, device, err := endpoint(args.Netns, args.IfName, result)
	if err != nil {
		return err
	}
	if err := <-node.answer; err != nil {
		return err
	}
	if err := at.create(c.Name, podOf(args).uid, device); err != nil {
		return err
	}
	if err := node.set(c.listener(at, identity(args), of)); err != nil {
		return err
	}
	// Now that the address is nobody else's. Without it, the pod is served as bridges serve all others.
	if err := hold(device, of.GetMac()); err != nil {
		fmt.Fprintln(os.Stderr, "takt-cni: another pod could have what is for this one by sending with its address:", err)
	}
	return at.finish(name(args))
}

// detach takes the pod out of the network. Nothing there is as good.
func (c *Config) detach(at attachment) error {
	if _, err := os.Lstat(at.directory()); errors.Is(err, os.ErrNotExist) {
		// An ADD that was killed may have begun.
		return at.removePod()
	}
	runtime, err := c.taktd()
	if err != nil {
		return err
	}
	defer runtime.close()
	// If taktd is not running: without its directory the listener does not come back at its next start.
	if err := runtime.remove(at.socket()); err != nil && !isAway(err) {
		return err
	}
	return at.remove()
}

func del(args *skel.CmdArgs) error {
	c, err := decode(args.StdinData)
	if err != nil {
		return err
	}
	at := c.attachment(args.ContainerID, args.IfName)
	unlock, err := at.lock()
	if err != nil {
		return err
	}
	defer unlock()
	// First: nobody must have the addresses that are free then while frames of the pod can still leave with them.
	if err := c.detach(at); err != nil {
		return err
	}
	if c.Delegate == nil {
		return nil
	}
	conf, err := c.delegated(args.StdinData)
	if err != nil {
		return err
	}
	if err := invoke.DelegateDel(context.Background(), c.delegateType, conf, nil); err != nil {
		return delegateFailed(c, err)
	}
	return nil
}

func check(args *skel.CmdArgs) error {
	c, err := load(args.StdinData)
	if err != nil {
		return err
	}
	selected, err := c.selects()
	if err != nil {
		return err
	}
	at := c.attachment(args.ContainerID, args.IfName)
	unlock, err := at.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if c.Delegate != nil {
		conf, err := c.delegated(args.StdinData)
		if err != nil {
			return err
		}
		if err := invoke.DelegateCheck(context.Background(), c.delegateType, conf, nil); err != nil {
			return delegateFailed(c, err)
		}
	}
	result, err := c.chained()
	if err != nil || !selected {
		return err
	}
	of, _, err := endpoint(args.Netns, args.IfName, result)
	if err != nil {
		return err
	}
	runtime, err := c.taktd()
	if err != nil {
		return err
	}
	defer runtime.close()
	wanted := c.listener(at, identity(args), of)
	is, err := runtime.listener(wanted.GetPath())
	switch {
	case err != nil:
		return err
	case is == nil:
		return types.NewError(errorRefused, fmt.Sprintf("taktd has no listener %s: the pod has to be created again", wanted.GetPath()), "")
	case !same(is, wanted):
		return types.NewError(errorRefused, fmt.Sprintf("listener %s is of %v with classes %v, and the pod is %v with classes %v: the pod has to be created again",
			wanted.GetPath(), is.GetEndpoint(), is.GetClasses(), wanted.GetEndpoint(), wanted.GetClasses()), "")
	}
	if _, err := os.Stat(wanted.GetPath()); err != nil {
		return failure("the pod's socket is not there: the pod has to be created again", err)
	}
	return nil
}

// collect removes what is of no valid attachment of the network.
func collect(args *skel.CmdArgs) error {
	c, err := decode(args.StdinData)
	if err != nil {
		return err
	}
	// Who does not say which are valid does not mean that none is. A list that is empty may come as null.
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(args.StdinData, &keys); err != nil {
		return types.NewError(types.ErrDecodingFailure, "the network configuration cannot be read: "+err.Error(), "")
	}
	if _, said := keys[validAttachments]; !said {
		return invalid("%s is missing, and without it GC would detach every pod of the network: list the attachments that are valid, [] if none is", validAttachments)
	}
	there, err := c.attachments()
	if err != nil {
		return err
	}
	var failed []error
	for _, at := range there {
		valid := types.GCAttachment{ContainerID: at.container, IfName: at.ifname}
		if slices.Contains(c.ValidAttachments, valid) {
			continue
		}
		if err := c.collectOne(at); err != nil {
			failed = append(failed, err)
		}
	}
	if c.Delegate != nil {
		conf, err := c.delegated(args.StdinData)
		if err == nil {
			err = invoke.DelegateGC(context.Background(), c.delegateType, conf, nil)
		}
		if err != nil {
			failed = append(failed, delegateFailed(c, err))
		}
	}
	return errors.Join(failed...)
}

func (c *Config) collectOne(at attachment) error {
	unlock, err := at.lock()
	if err != nil {
		return err
	}
	defer unlock()
	network, err := at.network()
	// Without a network it is what an ADD that was killed has left: no command is under way.
	if err != nil || network != "" && network != c.Name {
		return err
	}
	return c.detach(at)
}

// report says whether pods can be attached.
func report(args *skel.CmdArgs) error {
	c, err := load(args.StdinData)
	if err != nil {
		return err
	}
	// A STATUS that fails makes the whole node not ready. Pods that ask for taktd are refused by ADD; the others need none.
	if c.Delegate == nil && c.Pods == PodsAnnotated {
		return nil
	}
	runtime, err := c.taktd()
	if err != nil {
		return err
	}
	defer runtime.close()
	if err := runtime.network(c); err != nil && (c.Runtime == RuntimeRequired || !isAway(err)) {
		return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
	}
	if c.Delegate == nil {
		return nil
	}
	conf, err := c.delegated(args.StdinData)
	if err != nil {
		return err
	}
	if err := invoke.DelegateStatus(context.Background(), c.delegateType, conf, nil); err != nil {
		return delegateFailed(c, err)
	}
	return nil
}

// exhausted is what host-local says when all addresses of its ranges are taken.
const exhausted = "no IP addresses available in range set"

// delegateFailed names the plugin that has failed, and keeps its error code.
func delegateFailed(c *Config, err error) error {
	code := types.ErrInternal
	var told *types.Error
	if errors.As(err, &told) {
		code = told.Code
	}
	remedy := ""
	if strings.Contains(err.Error(), exhausted) {
		remedy = fmt.Sprintf(": every address that the ipam of network %s has for this node is a pod's: delete pods that are attached here, or give it a larger range, which overlaps with no other node's. "+
			"host-local has a file for each that is taken, by default in /var/lib/cni/networks/%[1]s: one that names a container which is gone may be removed", c.Name)
	}
	return types.NewError(code, fmt.Sprintf("delegate %s: %v%s", c.delegateType, err, remedy), "")
}
