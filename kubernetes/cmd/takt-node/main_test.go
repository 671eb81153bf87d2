package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whether attached pods have gone, only the API server knows.
func TestAnAgentThatUninstallsAsksTheAPIServer(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	text := "cores: none\nlisten: \"\"\nnetwork: {sockets: " + filepath.Join(dir, "cni") + ", adminSocket: " + filepath.Join(dir, "admin.sock") + ", preload: /preload, plugins: " + filepath.Join(dir, "bin") + "}\n"
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(context.Background())
	end()
	err := run(ended, config, false, "one", filepath.Join(dir, "kubeconfig"), "", "", true)
	if err == nil || !strings.Contains(err.Error(), "cannot reach the API server") {
		t.Errorf("without a way to it: %v", err)
	}
}
