package objects

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
)

const definitions = "../../../deploy/helm/takt-node/crds"

// Written as a user writes them, so that neither Go's types nor its defaults are between.
func TestTheAPIServerRefusesWhatNoNodeCouldDo(t *testing.T) {
	client, err := dynamic.NewForConfig(apitest.Start(t, definitions))
	if err != nil {
		t.Fatal(err)
	}
	create := func(resource, kind, name, spec string) error {
		object := map[string]any{}
		if err := yaml.Unmarshal([]byte(spec), &object); err != nil {
			t.Fatal(err)
		}
		_, err := client.Resource(schema.GroupVersionResource{Group: "network.takt.dev", Version: "v1alpha1", Resource: resource}).Create(
			context.Background(), &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "network.takt.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": object,
			}}, metav1.CreateOptions{FieldValidation: "Strict"})
		return err
	}
	for _, c := range []struct{ name, spec, refused string }{
		{"whole", "{vni: 42, port: 8472, subnets: [10.50.0.0/16, 'fd00::/64'], mtu: 1450, uplink: eth1, access: [{namespaces: [plant], classes: [0, 5]}], stations: [{mac: '02:00:00:00:00:09', vtep: 192.0.2.9, addresses: [10.50.9.9]}]}", ""},
		{"native", "{}", ""},
		{"tagged", "{vlan: 100, uplink: eth1, nodeSelector: {matchLabels: {tsn: 'yes'}}}", ""},
		{"two-carriers", "{vni: 42, vlan: 100}", "a network is one of vni, vlan and routed"},
		{"port-alone", "{port: 4789}", "write vni beside it"},
		{"vni-too-large", "{vni: 16777216}", "spec.vni"},
		{"vlan-zero", "{vlan: 0}", "spec.vlan"},
		{"no-prefix", "{subnets: [10.50.0.1]}", "as in 10.50.0.0/16"},
		{"host-bits", "{subnets: [10.50.0.0/16, 10.50.0.1/24]}", "no bits beyond their prefix"},
		{"host-bits-six", "{subnets: ['fd00::1/64']}", "no bits beyond their prefix"},
		{"one-address", "{subnets: [10.50.0.1/32, 'fd00::1/128', 0.0.0.0/0, '::/0']}", ""},
		{"mtu-too-large", "{mtu: 65536}", "spec.mtu"},
		{"uplink-too-long", "{uplink: an-interface-name}", "spec.uplink"},
		{"class-8", "{access: [{classes: [8]}]}", "classes[0]"},
		{"all-namespaces", "{access: [{namespaces: ['*']}]}", "namespaces[0]"},
		{"no-namespace", "{access: [{namespaces: [plant, 'Not A NS']}]}", "namespaces[1]"},
		{"namespaces", "{access: [{namespaces: [plant, a, kube-system, 0-1]}]}", ""},
		{"nobody", "{access: []}", "a list without entries lets nobody in"},
		{"nobody-of", "{access: [{namespaces: []}]}", "a list without entries is of no namespace"},
		{"nothing", "{access: [{namespaces: [plant], classes: []}]}", "a list without entries has no class"},
		{"everybody", "{access: [{}]}", ""},
		{"no-vtep", "{vni: 1, stations: [{mac: '02:00:00:00:00:09'}]}", "behind a vtep"},
		{"native-vtep", "{stations: [{mac: '02:00:00:00:00:09', vtep: 192.0.2.9}]}", "behind a vtep"},
		{"bad-mac", "{vni: 1, stations: [{mac: '02-00', vtep: 192.0.2.9}]}", "mac"},
		{"bad-vtep", "{vni: 1, stations: [{mac: '02:00:00:00:00:09', vtep: node-2}]}", "vtep is an IP address"},
		{"unknown-key", "{vnid: 1}", "unknown field"},
		{"A.dotted.name", "{}", "Invalid"},
		{"dotted.name", "{}", "the name is that of a [[network]]"},
	} {
		expect(t, c.name, create("taktnetworks", "TaktNetwork", c.name, c.spec), c.refused)
	}
	const gates = "cycleTime: 1ms, entries: [{gates: [7], interval: 250us}, {gates: [0, 1, 2, 3, 4, 5, 6], interval: 750us}]"
	for _, c := range []struct{ name, spec, refused string }{
		{"plain", "{datapath: udp, " + gates + "}", ""},
		{"whole", "{network: pods, datapath: xdp, rate: 100000000, vlan: true, otherTraffic: taprio-offload, baseTime: '1800000000.5', cycleTimeExtension: 50us, initialGates: [], maxSDU: [{class: 7, octets: 256}], priorities: [0, 0, 0, 0, 5, 5, 6, 7], requireSync: 1us, selection: [{class: 6, algorithm: credit-based, idleSlope: 10000000}], " + gates + "}", ""},
		{"htb", "{datapath: udp, otherTraffic: htb, " + gates + "}", "spec.otherTraffic"},
		{"negative-rate", "{datapath: udp, rate: -1, " + gates + "}", "spec.rate"},
		{"no-datapath", "{" + gates + "}", "spec.datapath"},
		{"no-entries", "{datapath: udp, cycleTime: 1ms, entries: []}", "spec.entries"},
		{"no-cycle", "{datapath: udp, entries: [{gates: [7], interval: 1ms}]}", "spec.cycleTime"},
		{"no-unit", "{datapath: udp, cycleTime: '1', entries: [{gates: [7], interval: 1ms}]}", "spec.cycleTime"},
		{"gate-8", "{datapath: udp, cycleTime: 1ms, entries: [{gates: [8], interval: 1ms}]}", "gates[0]"},
		{"two-selectors", "{network: pods, nodeSelector: {}, datapath: udp, " + gates + "}", "leave one of them out"},
		{"seven-priorities", "{datapath: udp, priorities: [0, 1, 2, 3, 4, 5, 6], " + gates + "}", "spec.priorities"},
		{"algorithm", "{datapath: udp, selection: [{class: 1, algorithm: fair}], " + gates + "}", "algorithm"},
		{"slope", "{datapath: udp, selection: [{class: 1, algorithm: first-come, idleSlope: 5}], " + gates + "}", "credit-based classes"},
		{"base", "{datapath: udp, baseTime: now, " + gates + "}", "spec.baseTime"},
		{"far-base", "{datapath: udp, baseTime: '9900000000', " + gates + "}", "spec.baseTime"},
	} {
		expect(t, c.name, create("gateschedules", "GateSchedule", c.name, c.spec), c.refused)
	}
	// The old link would have no schedule from then on, before the new one has it, and also where a node refuses that.
	resource := client.Resource(schema.GroupVersionResource{Group: "network.takt.dev", Version: "v1alpha1", Resource: "gateschedules"})
	for patch, refused := range map[string]string{`{"spec":{"datapath":"xdp"}}`: "datapath does not change: create another GateSchedule", `{"spec":{"datapath":"udp","vlan":true}}`: ""} {
		_, err := resource.Patch(context.Background(), "plain", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		expect(t, patch, err, refused)
	}
	// Nobody has told the rate of its link: a guess would have claims admitted against time that there is not.
	plain, err := resource.Get(context.Background(), "plain", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if rate, told, _ := unstructured.NestedInt64(plain.Object, "spec", "rate"); told && rate != 0 {
		t.Errorf("a schedule without a rate has %d", rate)
	}
}

func expect(t *testing.T, name string, err error, refused string) {
	t.Helper()
	switch {
	case refused == "" && err != nil:
		t.Errorf("%s is refused: %v", name, err)
	case refused != "" && err == nil:
		t.Errorf("%s is taken", name)
	case refused != "" && !strings.Contains(err.Error(), refused):
		t.Errorf("%s: %v does not say %q", name, err, refused)
	}
}

func TestWhatIsWrittenIsReadAgain(t *testing.T) {
	client, err := New(apitest.Start(t, definitions))
	if err != nil {
		t.Fatal(err)
	}
	unrated := network.Revision{Name: "gates", UID: "u", Generation: 1, Schedule: network.Schedule{CycleTime: 1_000_000, Entries: []network.GateEntry{{Gates: []int32{7}, Interval: 1_000_000}}}}
	revision := network.Revision{Name: "gates", UID: "u", Generation: 2, BeginsNanoseconds: 1_800_000_000_123_456_789, Schedule: network.Schedule{
		Rate: 1_000_000_000, CycleTime: 1_000_000, Entries: []network.GateEntry{{Gates: []int32{7}, Interval: 1_000_000}},
	}}
	made, err := client.Nodes.Create(context.Background(), &network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: network.TaktNodeSpec{
		Schedules: []network.Assignment{{Datapath: "udp", Revision: revision, Previous: &unrated}},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made.Status.Schedules = []network.LinkState{{Datapath: "udp", Name: "gates", UID: "u", Generation: 2, BeginsNanoseconds: revision.BeginsNanoseconds, State: network.Pending}}
	if made, err = client.Nodes.UpdateStatus(context.Background(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !made.Status.Schedules[0].Of(&made.Spec.Schedules[0].Revision) || made.Spec.Schedules[0].Previous.Entries[0].Interval != 1_000_000 || made.Spec.Schedules[0].Previous.Rate != 0 {
		t.Errorf("it has become %+v", made)
	}
}
