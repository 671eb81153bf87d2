package node

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
	"github.com/takt-dev/takt/kubernetes/internal/topology"
)

func load(t *testing.T, text string) (Config, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return LoadConfig(path)
}

func TestAConfigurationNeedsOnlyItsCores(t *testing.T) {
	config, err := load(t, "cores: all\n")
	if err != nil {
		t.Fatal(err)
	}
	want := DefaultConfig()
	want.Cores = "all"
	if config != want {
		t.Errorf("read %+v", config)
	}
	offer, err := config.Offer("/", enforce.Deadline{})
	if err != nil || len(offer.CPUs) == 0 || offer.Bound == 0 {
		t.Errorf("offer %+v, %v", offer, err)
	}
}

func TestMistakesInAConfigurationAreNamed(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "cores is missing",
		"cores: 2-\n":                       `"2-"`,
		"cores: all\ncore: 1\n":             `"core"`,
		"cores: all\nbound: 1000001\n":      "1000001",
		"cores: all\norder: first-fit\n":    `"first-fit"`,
		"cores: all\nbackend: cfs\n":        `"cfs"`,
		"cores: all\nscanInterval: 1us\n":   "scanInterval 1us",
		"cores: all\nscanInterval: soon\n":  `"soon"`,
		"cores: all\nnriSocket: nri.sock\n": "nriSocket",
		"cores: x\norder: near\n":           `order "near"`, // all at once
		"cores: all\ncores: 1\n":            "cores",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := LoadConfig("/nowhere.yaml"); err == nil || !strings.Contains(err.Error(), "/nowhere.yaml") {
		t.Errorf("error is %v", err)
	}
}

func TestWhatTheMachineCannotGiveIsNotOffered(t *testing.T) {
	for text, want := range map[string]string{
		"cores: \"8000\"\n":            "CPU 8000",
		"cores: all\nbound: 1000000\n": "above the kernel's",
	} {
		config, err := load(t, text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Offer("/", enforce.Deadline{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// machine is below a root of its own: its online CPUs and those that isolcpus= names.
func machine(t *testing.T, online, isolated string) string {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"sys/devices/system/cpu/online": online, "sys/devices/system/cpu/isolated": isolated,
		"proc/sys/kernel/sched_rt_runtime_us": "950000", "proc/sys/kernel/sched_rt_period_us": "1000000",
		"proc/sys/kernel/osrelease": "6.18.0",
	}
	cpus, err := topology.ParseCPUList(online)
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range cpus {
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", cpu)
		files[dir+"core_id"], files[dir+"physical_package_id"], files[dir+"thread_siblings_list"] = fmt.Sprint(cpu), "0", fmt.Sprint(cpu)
	}
	for file, text := range files {
		path := filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestOnlyWhatIsSchedulableIsOfferedUnderGlobalEDF(t *testing.T) {
	root := machine(t, "0-7", "")
	for text, want := range map[string][]int64{
		"cores: \"6,7\"\n":                               {888888, 888888},
		"cores: all\nmaxDensity: 100000\n":               {900000, 900000, 900000, 900000, 900000, 900000, 900000, 900000},
		"cores: \"4-7\"\nmaxDensity: 900000\n":           {900000, 800000, 0, 0},
		"cores: \"6,7\"\nadmission: soft\n":              {900000, 900000},
		"cores: \"6,7\"\nbound: 500000\nbackend: auto\n": {500000, 500000},
	} {
		config, err := load(t, text)
		if err != nil {
			t.Fatal(err)
		}
		offer, err := config.Offer(root, enforce.Deadline{})
		if err != nil {
			t.Fatal(err)
		}
		for i, capacity := range offer.Capacities {
			if diff := capacity - want[i]; diff < 0 || diff > 8 {
				t.Errorf("%q: capacities %v", text, offer.Capacities)
			}
		}
	}
}

func TestCoresThatTheKernelKeepsApartAreNotOffered(t *testing.T) {
	root := machine(t, "0-3", "2-3")
	config, err := load(t, "cores: all\n")
	if err != nil {
		t.Fatal(err)
	}
	offer, err := config.Offer(root, enforce.Deadline{})
	if err != nil || len(offer.CPUs) != 2 || offer.RootDomain != 2 {
		t.Errorf("offer %+v, %v", offer, err)
	}
	config.Cores = "1-2"
	if _, err := config.Offer(root, enforce.Deadline{}); err == nil || !strings.Contains(err.Error(), "CPU 2, which the kernel's isolcpus") {
		t.Errorf("error is %v", err)
	}
	if _, err := config.Offer(root, &enforce.Partition{}); err != nil {
		t.Errorf("a backend with a root domain per core: %v", err)
	}
}

func TestWholeCoresAreOfferedWhole(t *testing.T) {
	root := machine(t, "0-3", "")
	config, err := load(t, "cores: \"2-3\"\n")
	if err != nil {
		t.Fatal(err)
	}
	offer, err := config.Offer(root, &enforce.Whole{})
	if err != nil || !offer.Whole || offer.Most != 1_000_000 || !slices.Equal(offer.Capacities, []int64{1_000_000, 1_000_000}) {
		t.Errorf("offer %+v, %v", offer, err)
	}
	config.Bound = 900_000
	if _, err := config.Offer(root, &enforce.Whole{}); err == nil || !strings.Contains(err.Error(), "bound 900000 has no effect") {
		t.Errorf("a part of them: %v", err)
	}
}

func TestAdmissionIsOnlyOfBackendsThatNeedIt(t *testing.T) {
	root := machine(t, "0-3", "")
	for text, want := range map[string]string{
		"cores: \"1\"\nadmission: soft\n":    "admission soft is not available",
		"cores: \"1\"\nmaxDensity: 500000\n": "maxDensity 500000 has no effect",
	} {
		config, err := load(t, text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Offer(root, &enforce.Partition{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		"cores: all\nadmission: hard\n":                     `admission "hard"`,
		"cores: all\nmaxDensity: 1000001\n":                 "maxDensity 1000001",
		"cores: all\nmaxDensity: 500000\nadmission: soft\n": "no effect with admission soft",
	} {
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
