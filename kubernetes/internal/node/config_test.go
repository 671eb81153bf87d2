package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
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
