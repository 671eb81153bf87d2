// Command multus stands in for Multus, which is not in the registries: behind the plugins of the primary network it makes the calls
// that Multus makes for the networks of a pod's annotation, by the configurations of their NetworkAttachmentDefinitions.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

// network is one of a pod, with what its plugins are called with.
type network struct {
	list    *libcni.NetworkConfigList
	runtime *libcni.RuntimeConf
}

const podAnnotations = "io.kubernetes.cri.pod-annotations"

// networks are those of the pod's annotation k8s.v1.cni.cncf.io/networks, in its order: net1, net2, ...
func networks(args *skel.CmdArgs) (all []network, prevResult json.RawMessage, err error) {
	var conf struct {
		Kubectl       []string
		RuntimeConfig map[string]map[string]string
		PrevResult    json.RawMessage
	}
	if err := json.Unmarshal(args.StdinData, &conf); err != nil {
		return nil, nil, err
	}
	var pairs [][2]string
	namespace := ""
	for pair := range strings.SplitSeq(args.Args, ";") {
		key, value, _ := strings.Cut(pair, "=")
		pairs = append(pairs, [2]string{key, value})
		if key == "K8S_POD_NAMESPACE" {
			namespace = value
		}
	}
	for name := range strings.SplitSeq(conf.RuntimeConfig[podAnnotations]["k8s.v1.cni.cncf.io/networks"], ",") {
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		command := append(conf.Kubectl, "-n", namespace, "get", "network-attachment-definitions", name, "-o", "jsonpath={.spec.config}")
		text, err := exec.Command(command[0], command[1:]...).Output()
		if err != nil {
			return nil, nil, fmt.Errorf("cannot get %s/%s: %w", namespace, name, err)
		}
		plugin, err := libcni.ConfFromBytes(text)
		if err != nil {
			return nil, nil, err
		}
		list, err := libcni.ConfListFromConf(plugin)
		if err != nil {
			return nil, nil, err
		}
		all = append(all, network{list, &libcni.RuntimeConf{
			ContainerID: args.ContainerID, NetNS: args.Netns, IfName: fmt.Sprintf("net%d", len(all)+1), Args: pairs,
		}})
	}
	return all, conf.PrevResult, nil
}

func add(args *skel.CmdArgs) error {
	all, prevResult, err := networks(args)
	if err != nil {
		return err
	}
	plugins := libcni.NewCNIConfig([]string{args.Path}, nil)
	for _, one := range all {
		if _, err := plugins.AddNetworkList(context.Background(), one.list, one.runtime); err != nil {
			return err
		}
	}
	_, err = os.Stdout.Write(prevResult)
	return err
}

func del(args *skel.CmdArgs) error {
	all, _, err := networks(args)
	if err != nil {
		return err
	}
	plugins := libcni.NewCNIConfig([]string{args.Path}, nil)
	for _, one := range all {
		err = errors.Join(err, plugins.DelNetworkList(context.Background(), one.list, one.runtime))
	}
	return err
}

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: func(*skel.CmdArgs) error { return nil }}, version.All, "stands in for Multus")
}
