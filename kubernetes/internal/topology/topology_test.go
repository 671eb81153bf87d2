package topology

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// tree writes files below a root of their own.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, "sys/devices/system", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func twoSockets() map[string]string {
	return map[string]string{
		"cpu/online":                             "0,2-3",
		"cpu/cpu0/topology/core_id":              "0",
		"cpu/cpu0/topology/physical_package_id":  "0",
		"cpu/cpu0/topology/thread_siblings_list": "0,2",
		"cpu/cpu0/cache/index3/id":               "4",
		"cpu/cpu2/topology/core_id":              "0",
		"cpu/cpu2/topology/physical_package_id":  "0",
		"cpu/cpu2/topology/thread_siblings_list": "0,2",
		"cpu/cpu2/cache/index3/id":               "4",
		"cpu/cpu3/topology/core_id":              "0",
		"cpu/cpu3/topology/physical_package_id":  "1",
		"cpu/cpu3/topology/thread_siblings_list": "3",
		"node/node0/cpulist":                     "0-2",
		"node/node1/cpulist":                     "3",
		"node/possible":                          "0-1",
	}
}

func TestTopologyIsReadFromSysfs(t *testing.T) {
	cpus, err := Read(tree(t, twoSockets()))
	if err != nil {
		t.Fatal(err)
	}
	want := []CPU{
		{ID: 0, Core: 0, Package: 0, NUMANode: 0, Siblings: []int{2}, L3: 4},
		{ID: 2, Core: 0, Package: 0, NUMANode: 0, Siblings: []int{0}, L3: 4},
		{ID: 3, Core: 0, Package: 1, NUMANode: 1, Siblings: []int{}, L3: -1},
	}
	if len(cpus) != len(want) {
		t.Fatalf("read %+v", cpus)
	}
	for i := range want {
		got := cpus[i]
		if !slices.Equal(got.Siblings, want[i].Siblings) {
			t.Errorf("CPU %d has siblings %v", got.ID, got.Siblings)
		}
		got.Siblings, want[i].Siblings = nil, nil
		if got.ID != want[i].ID || got.Package != want[i].Package || got.NUMANode != want[i].NUMANode || got.L3 != want[i].L3 {
			t.Errorf("read %+v, want %+v", got, want[i])
		}
	}
}

func TestWhatSysfsDoesNotSayIsAnError(t *testing.T) {
	for name, edit := range map[string]func(map[string]string){
		"online":       func(f map[string]string) { delete(f, "cpu/online") },
		"lists no CPU": func(f map[string]string) { f["cpu/online"] = "" },
		"core_id":      func(f map[string]string) { delete(f, "cpu/cpu3/topology/core_id") },
		"thread_sibl":  func(f map[string]string) { f["cpu/cpu0/topology/thread_siblings_list"] = "0,x" },
		"node1":        func(f map[string]string) { f["node/node1/cpulist"] = "3-" },
	} {
		files := twoSockets()
		edit(files)
		if _, err := Read(tree(t, files)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error is %v", name, err)
		}
	}
}

func TestThisMachineIsRead(t *testing.T) {
	cpus, err := Read("/")
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < runtime.NumCPU() {
		t.Errorf("read %d CPUs of %d", len(cpus), runtime.NumCPU())
	}
}

func TestCPUListsSurviveWriting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cpus := rapid.SliceOf(rapid.IntRange(0, MaxCPU)).Draw(t, "cpus")
		want := slices.Compact(slices.Sorted(slices.Values(cpus)))
		got, err := ParseCPUList(FormatCPUList(cpus))
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%v became %v, %v", want, got, err)
		}
	})
}

func TestBrokenCPUListsAreRefused(t *testing.T) {
	for _, text := range []string{"x", "1-", "-1", "3-1", "1,,2", "8192", "0-99999999999", "1 2"} {
		if cpus, err := ParseCPUList(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%q is %v, %v", text, cpus, err)
		}
	}
}

func TestARootDomainHasNeitherIsolatedCPUsNorThoseOfPartitions(t *testing.T) {
	root := tree(t, map[string]string{"cpu/online": "0-5", "cpu/isolated": "5", "../../fs/cgroup/cpuset.cpus.effective": "0-2,4-5"})
	if got, err := RootDomain(root); err != nil || !slices.Equal(got, []int{0, 1, 2, 4}) {
		t.Errorf("the domain is %v, %v", got, err)
	}
}
