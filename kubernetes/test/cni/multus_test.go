package cni

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"sigs.k8s.io/yaml"
)

// definition is what the manifests use of a NetworkAttachmentDefinition (k8s.cni.cncf.io/v1), whose types are not in the
// registries.
type definition struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		Config string `json:"config"`
	} `json:"spec"`
}

// attachment is the definition of the manifest and its configuration, in which a node's own places are put.
func attachment(t *testing.T, own object) (of definition, config []byte) {
	t.Helper()
	text, err := os.ReadFile("../../../deploy/manifests/network-attachment.yaml")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n---\n")
	if err := yaml.UnmarshalStrict([]byte(first), &of); err != nil {
		t.Fatal(err)
	}
	plugin := object{}
	if err := json.Unmarshal([]byte(of.Spec.Config), &plugin); err != nil {
		t.Fatalf("spec.config: %v", err)
	}
	for key, value := range own {
		plugin[key] = value
	}
	name, _ := plugin["name"].(string)
	version := plugin["cniVersion"]
	delete(plugin, "name")
	delete(plugin, "cniVersion")
	// As Multus does with a configuration of one plugin.
	if config, err = json.Marshal(object{"cniVersion": version, "name": name, "plugins": []object{plugin}}); err != nil {
		t.Fatal(err)
	}
	return of, config
}

// status is an entry of the annotation k8s.v1.cni.cncf.io/network-status (Multi-Network Specification, section 4.1.3).
type status struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface"`
	IPs       []string `json:"ips"`
	MAC       string   `json:"mac"`
}

// networkStatus is what Multus writes on the pod of one result: of its interface in the pod, the last one of the list.
func networkStatus(name string, result *types100.Result) status {
	of := status{Name: name}
	for _, link := range result.Interfaces {
		if link.Sandbox != "" {
			of.Interface, of.MAC = link.Name, link.Mac
		}
	}
	for _, ip := range result.IPs {
		of.IPs = append(of.IPs, ip.Address.IP.String())
	}
	return of
}
