package cni

import (
	"context"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/plugins/pkg/ns"
)

// What ADD costs: the reference bridge plugin alone, with takt-cni behind it, and called by it; by the calls of a container runtime.
// Asserts nothing about time.
func TestTheCostOfADD(t *testing.T) {
	rounds, err := strconv.Atoi(os.Getenv("TAKT_BENCH_ADDS"))
	if err != nil || rounds < 1 {
		t.Skip("a measurement: run make bench-cni")
	}
	n := newNode(t, namespace(t), pods)
	// As /run is on a node: in memory.
	sockets := n.path("pods")
	if err := os.Mkdir(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	must(t, "mount", "-t", "tmpfs", "-o", "mode=755", "none", sockets)
	t.Cleanup(func() { must(t, "umount", "--lazy", sockets) })
	ways := []struct {
		name string
		list []byte
	}{
		{"bridge", list(t, "tsn", n.bridge())},
		{"bridge, then takt-cni", list(t, "tsn", n.bridge(), n.conf("1.1.0", nil))},
		{"takt-cni, which calls bridge", list(t, "tsn", n.conf("1.1.0", object{"delegate": n.bridge()}))},
	}
	tool := libcni.NewCNIConfigWithCacheDir([]string{programs}, n.path("cache"), nil)
	at, err := ns.GetNS("/run/netns/" + n.namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer at.Close()
	p := newPod(t)
	took := make([][]float64, len(ways))
	for round := range rounds {
		// In turns, each first once.
		for i := range ways {
			way := (i + round) % len(ways)
			of, err := libcni.ConfListFromBytes(ways[way].list)
			if err != nil {
				t.Fatal(err)
			}
			runtime := &libcni.RuntimeConf{
				ContainerID: p.id, NetNS: "/run/netns/" + p.namespace, IfName: p.ifname,
				Args: [][2]string{{"IgnoreUnknown", "true"}, {"K8S_POD_NAMESPACE", "line"}, {"K8S_POD_NAME", p.namespace}},
			}
			// The plugins inherit the namespace of the thread that starts them.
			err = at.Do(func(ns.NetNS) error {
				began := time.Now()
				if _, err := tool.AddNetworkList(context.Background(), of, runtime); err != nil {
					return err
				}
				took[way] = append(took[way], float64(time.Since(began).Microseconds())/1000)
				return tool.DelNetworkList(context.Background(), of, runtime)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	n.nothingLeft(t, "after the last DEL")
	quantile := func(of []float64, q float64) float64 { return of[min(int(q*float64(len(of))), len(of)-1)] }
	for way, all := range took {
		slices.Sort(all)
		t.Logf("%-28s %4d ADDs: p50 %6.1f ms, p90 %6.1f ms, %.2f times the median of bridge alone", ways[way].name, len(all),
			quantile(all, 0.5), quantile(all, 0.9), quantile(all, 0.5)/quantile(took[0], 0.5))
	}
}
