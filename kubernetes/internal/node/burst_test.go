package node

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
)

// The client waits for its own limit, whatever the API server could take: what fifty pods need that start together has to be
// within what it may ask at once.
func TestFiftyClaimsAtOnceDoNotWaitForTheAPI(t *testing.T) {
	s := newSite(t)
	kubelet := s.kubelet()
	const many = 50
	const small = `{"apiVersion":"cpu.takt.dev/v1alpha1","kind":"Reservation","runtime":"100us","period":"20ms"}`
	var claims []*resourceapi.ResourceClaim
	for i := range many {
		claims = append(claims, s.claim(fmt.Sprintf("claim-%d", i), small, func(c *resourceapi.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].ConsumedCapacity[reservation.Bandwidth] = resource.MustParse("5k")
			c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{podReference(fmt.Sprintf("pod-%d", i))}
		}))
	}
	s.client.ClearActions()
	began := time.Now()
	var all sync.WaitGroup
	env := make([][]string, many)
	for i, claim := range claims {
		all.Go(func() {
			response, err := kubelet.NodePrepareResources(context.Background(), &drapb.NodePrepareResourcesRequest{
				Claims: []*drapb.Claim{{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}},
			})
			if err != nil || response.Claims[string(claim.UID)].GetError() != "" {
				t.Error(claim.Name, err, response)
				return
			}
			env[i] = response.Claims[string(claim.UID)].Devices[0].CdiDeviceIds
		})
	}
	all.Wait()
	t.Logf("%d claims were prepared in %s, with %d requests", many, time.Since(began), len(s.client.Actions()))
	if t.Failed() {
		return
	}
	claimsOf := resourceapi.SchemeGroupVersion.WithResource("resourceclaims")
	say := func(reason string) func() bool {
		return func() bool {
			for _, claim := range claims {
				is, err := s.client.Tracker().Get(claimsOf, claim.Namespace, claim.Name) // not counted
				if err != nil {
					t.Fatal(err)
				}
				if devices := is.(*resourceapi.ResourceClaim).Status.Devices; len(devices) == 0 || devices[0].Conditions[0].Reason != reason {
					return false
				}
			}
			return true
		}
	}
	s.until("all claims say that they are prepared", say("Prepared"))
	for i := range claims {
		b := s.mustCreate(fmt.Sprintf("pod-%d", i), "main", "idle", s.injected(env[i]).Process.Env)
		if err := b.gate(); err != nil {
			t.Fatal(err)
		}
	}
	s.until("all claims say that they are reserved", say(reasonReserved))
	asked := len(s.client.Actions())
	t.Logf("until their containers run they take %d requests", asked)
	if asked > APIBurst {
		t.Errorf("%d claims that start together take %d requests, and %d may be at once", many, asked, APIBurst)
	}
	if !strings.Contains(s.page(), fmt.Sprintf("takt_node_prepare_seconds_count %d", many)) {
		t.Error("not each claim's preparation was timed")
	}
}
