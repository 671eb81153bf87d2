package chart

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"pgregory.net/rapid"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/apitest"
)

// gateExample is a claim for gate time that passes: its second request and configuration.
func gateExample(t *testing.T) *resourcev1.ResourceClaim {
	t.Helper()
	text, err := os.ReadFile(manifestDir + "/gate-time.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := objects(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return &resourcev1.ResourceClaim{Spec: all[0].(*resourcev1.ResourceClaimTemplate).Spec.Spec}
}

func gateParameters(fields string) runtime.RawExtension {
	return runtime.RawExtension{Raw: []byte(`{"apiVersion":"network.takt.dev/v1alpha1","kind":"GateTime",` + fields + `}`)}
}

func TestThePolicyRefusesGateTimeThatTheNodeWould(t *testing.T) {
	chart := mustRender(t, both())
	p, templates := newPolicy(t, chart, "-resourceclaims-gate-time"), newPolicy(t, chart, "-resourceclaimtemplates-gate-time")
	const rest = `"class":5,"period":"1ms","bytes":256,`
	with := func(fields string) func(*resourcev1.ResourceClaimSpec) {
		return func(s *resourcev1.ResourceClaimSpec) { s.Devices.Config[1].Opaque.Parameters = gateParameters(fields) }
	}
	asks := func(name, quantity string) func(*resourcev1.ResourceClaimSpec) {
		return func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Requests[1].Exactly.Capacity.Requests = map[resourcev1.QualifiedName]resource.Quantity{resourcev1.QualifiedName(name): resource.MustParse(quantity)}
		}
	}
	const to = `"destination":"10.244.1.9:4000"`
	for name, tc := range map[string]struct {
		edit func(*resourcev1.ResourceClaimSpec)
		want string
	}{
		"the example":        {func(*resourcev1.ResourceClaimSpec) {}, ""},
		"more than it needs": {asks("class5", "3M"), ""},
		"of a channel":       {with(rest + `"channel":7`), ""},
		"to IPv6":            {with(rest + `"destination":"[fd00::9]:4000"`), ""},
		"shorter frames":     {with(`"class":5,"period":"1ms","bytes":256,"frame":256,` + to), ""},
		"too little":         {asks("class5", "2271999"), `GateTimeTooSmall: capacity.requests is less than bytes and period need: write class5: "2272000", or more`},
		"of another class":   {asks("class6", "2272000"), `write class5: "2272000"`},
		"a fraction":         {asks("class5", "2272000.5"), "GateTimeTooSmall"},
		"nothing":            {func(s *resourcev1.ResourceClaimSpec) { s.Devices.Requests[1].Exactly.Capacity = nil }, "GateTimeTooSmall"},
		"no parameters":      {func(s *resourcev1.ResourceClaimSpec) { s.Devices.Config = s.Devices.Config[:1] }, "a request for capacity of a class needs parameters"},
		"of another request": {func(s *resourcev1.ResourceClaimSpec) { s.Devices.Config[1].Requests = []string{"other"} }, "a request for capacity of a class needs parameters"},
		"the network alone": {func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Config, s.Devices.Requests[1].Exactly.Capacity = nil, nil
		}, ""},
		"no class":            {with(`"period":"1ms","bytes":256,` + to), "need apiVersion, kind, class, period and bytes"},
		"class 8":             {with(`"class":8,"period":"1ms","bytes":256,` + to), "class is a number from 0 to 7"},
		"a class as a text":   {with(`"class":"5","period":"1ms","bytes":256,` + to), "class is a number from 0 to 7"},
		"half a class":        {with(`"class":5.5,"period":"1ms","bytes":256,` + to), "class is a number from 0 to 7"},
		"bytes beyond all":    {with(`"class":5,"period":"1ms","bytes":9223372036854775807,"frame":1,` + to), "at most 1024 in a period"},
		"no bytes":            {with(`"class":5,"period":"1ms","bytes":0,` + to), "bytes those of all frames"},
		"too long a frame":    {with(`"class":5,"period":"1ms","bytes":16385,` + to), "without frame it is bytes: write frame"},
		"too many frames":     {with(`"class":5,"period":"1ms","bytes":1025,"frame":1,` + to), "at most 1024 in a period"},
		"a frame above bytes": {with(rest + `"frame":257,` + to), "at most 16384 and bytes"},
		"too short a period":  {with(`"class":5,"period":"999ns","bytes":256,` + to), "period is not from 1us to 60s"},
		"an offset beyond":    {with(rest + `"offset":"1ms",` + to), "offset or window is not shorter"},
		"a bare window":       {with(rest + `"window":1,` + to), "numbers with one of the units"},
		"an unknown field":    {with(rest + `"rate":1,` + to), "the other fields are class, period, bytes"},
		"nobody's frames":     {with(rest + `"window":"1us"`), "write either destination"},
		"two flows":           {with(rest + `"channel":7,` + to), "write either destination"},
		"no IP address":       {with(rest + `"destination":"1.2.3:99"`), "an IP address with a port"},
		"too large a number":  {with(rest + `"destination":"10.244.1.900:99"`), "an IP address with a port"},
		"no port":             {with(rest + `"destination":"10.244.1.9:0"`), "an IP address with a port"},
		"too large a port":    {with(rest + `"destination":"10.244.1.9:65536"`), "an IP address with a port"},
		"no IPv6":             {with(rest + `"destination":"[fd00:::9]:99"`), "an IP address with a port"},
		"to anybody":          {with(rest + `"destination":"0.0.0.0:1"`), "not 0.0.0.0 or [::]"},
		"to anybody by IPv6":  {with(rest + `"destination":"[::]:1"`), "not 0.0.0.0 or [::]"},
		"to many":             {with(rest + `"destination":"239.1.1.1:4000"`), ""},
		"IPv4 as IPv6":        {with(rest + `"destination":"[10.244.1.9]:99"`), "an IP address with a port"},
		"a channel in words":  {with(rest + `"channel":"seven"`), "or channel, a number"},
		"half a channel":      {with(rest + `"channel":7.5`), "or channel, a number"},
		"a channel below 0":   {with(rest + `"channel":-1`), "or channel, a number"},
		"channel 0":           {with(rest + `"channel":0`), ""},
		"two networks":        {func(s *resourcev1.ResourceClaimSpec) { s.Devices.Requests[1].Exactly.Count = 2 }, "leave count, allocationMode and adminAccess"},
		"all networks": {func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Requests[1].Exactly.AllocationMode = resourcev1.DeviceAllocationModeAll
		}, "leave count, allocationMode and adminAccess"},
		"one network": {func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Requests[1].Exactly.AllocationMode, s.Devices.Requests[1].Exactly.Count = resourcev1.DeviceAllocationModeExactCount, 1
		}, ""},
		"admin access": {func(s *resourcev1.ResourceClaimSpec) {
			yes := true
			s.Devices.Requests[1].Exactly.AdminAccess = &yes
		}, "leave count, allocationMode and adminAccess"},
		"what may be counted": {asks("class5", "291816000"), ""},
		"far too much":        {asks("class5", "291816001"), `GateTimeTooLarge: capacity.requests is far more than bytes and period need, and nobody else could claim the rest: write class5: "2272000"`},
		"a name":              {with(rest + `"destination":"listener:4000"`), "an IP address with a port"},
		"of another kind": {func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Config[1].Opaque.Parameters = runtime.RawExtension{Raw: []byte(`{"apiVersion":"network.takt.dev/v1alpha1","kind":"Gate","class":5,"period":"1ms","bytes":256,"channel":1}`)}
		}, "kind GateTime"},
		"no object": {func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Config[1].Opaque.Parameters = runtime.RawExtension{Raw: []byte(`"1ms"`)}
		}, "need apiVersion, kind, class, period and bytes"},
		"an alternative without": {func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Requests[1].FirstAvailable = []resourcev1.DeviceSubRequest{{Name: "a", DeviceClassName: "network.takt.dev"}}
			s.Devices.Requests[1].Exactly = nil
		}, "GateTimeTooSmall"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := gateExample(t)
			tc.edit(&claim.Spec)
			template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claim.Spec}}
			for what, err := range map[string]error{"claim": p.admit(claim, nil), "template": templates.admit(template, nil)} {
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "expression failed")) {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	if err := p.admit(example(t), nil); err != nil {
		t.Errorf("a claim for CPU time: %v", err)
	}
}

func TestThePolicyAndTheNodeComputeTheSameGateTime(t *testing.T) {
	p := newPolicy(t, mustRender(t, both()), "-resourceclaims-gate-time")
	claim := gateExample(t)
	rapid.Check(t, func(t *rapid.T) {
		frame := rapid.Int64Range(1, reservation.LongestFrame).Draw(t, "frame")
		bytes := rapid.Int64Range(frame, frame*reservation.MostFrames).Draw(t, "bytes")
		period := reservation.Duration(rapid.Int64Range(int64(reservation.MinGatePeriod), int64(reservation.MaxGatePeriod)).Draw(t, "period"))
		fields := fmt.Sprintf(`"class":5,"period":%q,"bytes":%d,"frame":%d,"channel":1`, period, bytes, frame)
		wanted, err := reservation.DecodeGateTime(gateParameters(fields).Raw)
		if err == nil {
			err = wanted.Validate()
		}
		if err != nil {
			t.Fatal(err)
		}
		least, most := wanted.BitsPerSecond(), reservation.MostCapacity(wanted.MostBitsPerSecond())
		bound := least
		if rapid.Bool().Draw(t, "the most") {
			bound = most
		}
		asked := max(bound+rapid.Int64Range(-2, 2).Draw(t, "off by"), 0)
		claim.Spec.Devices.Config[1].Opaque.Parameters = gateParameters(fields)
		claim.Spec.Devices.Requests[1].Exactly.Capacity.Requests["class5"] = *resource.NewQuantity(asked, resource.DecimalSI)
		if policy := p.admit(claim, nil); (asked >= least && asked <= most) != (policy == nil) {
			t.Fatalf("%s at %d of %d to %d: the policy says %v", fields, asked, least, most, policy)
		}
		// What a node may ask for passes.
		cycle := rapid.Uint64Range(15_625, 1_000_000_000).Draw(t, "cycle")
		need := reservation.StreamBits(wanted.Frames(), wanted.LargestFrame(), reservation.CountedPeriod(period.Nanoseconds(), cycle))
		if need < least || need > wanted.MostBitsPerSecond() {
			t.Fatalf("%s in cycles of %d takes %d, and %d to %d pass", fields, cycle, need, least, wanted.MostBitsPerSecond())
		}
	})
}

func TestTheAgentMayWriteWhatItSaysOfGateTime(t *testing.T) {
	rules := find[*rbacv1.ClusterRole](t, mustRender(t, both()), "").Rules
	for _, driver := range []string{reservation.Driver, reservation.NetworkDriver} {
		if !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool {
			return slices.Contains(r.Resources, "resourceclaims/driver") && slices.Contains(r.ResourceNames, driver) && slices.Contains(r.Verbs, "associated-node:update")
		}) {
			t.Errorf("it may not write the status of devices of %s", driver)
		}
	}
	for _, object := range mustRender(t, cores(nil)) {
		if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok && strings.HasSuffix(policy.Name, "-gate-time") {
			t.Errorf("policy %s on what nobody offers", policy.Name)
		}
	}
}

// A real API server, with the chart's policies.
func TestTheAPIServerRefusesGateTimeByThePolicy(t *testing.T) {
	client, err := kubernetes.NewForConfig(apitest.Start(t, chartDir+"/crds"))
	if err != nil {
		t.Fatal(err)
	}
	// One of before the policies, which they would refuse.
	before := gateExample(t)
	before.Name, before.Finalizers = "before", []string{"example.test/kept"}
	before.Spec.Devices.Requests[1].Exactly.Capacity.Requests["class5"] = resource.MustParse("1k")
	before.Spec.Devices.Config[0].Opaque.Parameters = runtime.RawExtension{Raw: []byte(`{"kind":"Reservation"}`)}
	before, err = client.ResourceV1().ResourceClaims("default").Create(t.Context(), before, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range mustRender(t, both()) {
		var err error
		switch o := object.(type) {
		case *admissionv1.ValidatingAdmissionPolicy:
			_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(), o, metav1.CreateOptions{})
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			_, err = client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create(t.Context(), o, metav1.CreateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	}
	try := func(name string, edit func(*resourcev1.ResourceClaimSpec)) error {
		claim := gateExample(t)
		claim.Name = name
		edit(&claim.Spec)
		_, err := client.ResourceV1().ResourceClaims("default").Create(t.Context(), claim, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	little := func(s *resourcev1.ResourceClaimSpec) {
		s.Devices.Requests[1].Exactly.Capacity.Requests["class5"] = resource.MustParse("2271k")
	}
	apitest.Until(t, "the policies are in force", func() bool { return try("little", little) != nil })
	if err := try("little", little); !strings.Contains(err.Error(), `GateTimeTooSmall: capacity.requests is less than bytes and period need: write class5: "2272000", or more`) {
		t.Error(err)
	}
	if err := try("example", func(*resourcev1.ResourceClaimSpec) {}); err != nil {
		t.Error(err)
	}
	// It can go.
	if err := client.ResourceV1().ResourceClaims("default").Delete(t.Context(), before.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if before, err = client.ResourceV1().ResourceClaims("default").Get(t.Context(), before.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	before.Finalizers = nil
	if _, err := client.ResourceV1().ResourceClaims("default").Update(t.Context(), before, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a claim of before the policies is kept for ever: %v", err)
	}
	if err := try("two", func(s *resourcev1.ResourceClaimSpec) { s.Devices.Requests[1].Exactly.Count = 2 }); err == nil || !strings.Contains(err.Error(), "leave count") {
		t.Error(err)
	}
	if err := try("nobody", func(s *resourcev1.ResourceClaimSpec) {
		s.Devices.Config[1].Opaque.Parameters = gateParameters(`"class":5,"period":"1ms","bytes":256`)
	}); err == nil || !strings.Contains(err.Error(), "write either destination") {
		t.Error(err)
	}
}
