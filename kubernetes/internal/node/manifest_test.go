package node

import (
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
)

// `takt schedule manifest` writes an object that is decoded without a rest, with all that a schedule says.
func TestAManifestOfAScheduleIsAGateSchedule(t *testing.T) {
	command := exec.Command(built(t, "takt")[0], "schedule", "manifest", "-", "--name", "line", "--datapath", "xdp", "--rate", "100mbit", "--vlan", "--network", "tsn")
	command.Stdin = strings.NewReader(`
interface = "eth0"
base-time = "1700000000.000000250"
cycle-time = "1500us"
cycle-time-extension = "20us"
initial-gates = "none"
require-sync = "1500ns"
[[entry]]
gates = [5, 7]
interval = "250us"
[[entry]]
gates = "none"
interval = "1250us"
[max-sdu]
5 = 300
[selection.5]
algorithm = "credit-based"
idle-slope = 20000000
hi-credit = 8000
[selection.4]
algorithm = "first-come"
[priorities]
classes = 8
map = [1, 0, 2, 3, 4, 5, 6, 7]
`)
	var complaints strings.Builder
	command.Stderr = &complaints
	written, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, complaints.String())
	}
	var got network.GateSchedule
	if err := yaml.UnmarshalStrict(written, &got); err != nil {
		t.Fatalf("%v:\n%s", err, written)
	}
	duration := func(of time.Duration) network.Duration { return network.Duration(of) }
	sync := duration(1500)
	want := network.GateSchedule{
		TypeMeta:   metav1.TypeMeta{APIVersion: network.GroupVersion.String(), Kind: "GateSchedule"},
		ObjectMeta: metav1.ObjectMeta{Name: "line"},
		Spec: network.GateScheduleSpec{
			Network:  "tsn",
			Datapath: "xdp",
			Schedule: network.Schedule{
				Rate:               100_000_000,
				VLAN:               true,
				BaseTime:           "1700000000.000000250",
				CycleTime:          duration(1500 * time.Microsecond),
				CycleTimeExtension: duration(20 * time.Microsecond),
				InitialGates:       &[]int32{},
				Entries: []network.GateEntry{
					{Gates: []int32{5, 7}, Interval: duration(250 * time.Microsecond)},
					{Gates: []int32{}, Interval: duration(1250 * time.Microsecond)},
				},
				MaxSDU:      []network.MaxSDU{{Class: 5, Octets: 300}},
				Priorities:  []int32{1, 0, 2, 3, 4, 5, 6, 7},
				RequireSync: &sync,
				Selection: []network.Selection{
					{Class: 4, Algorithm: "first-come"},
					{Class: 5, Algorithm: "credit-based", IdleSlope: 20_000_000, HighCredit: 8000},
				},
			},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v\nof\n%s", got, want, written)
	}
}
