package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/takt-dev/takt/kubernetes/internal/node"
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

func TestTheAgentAsksTheAPIAsOftenAsManyPodsAtOnceNeed(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "{apiVersion: v1, kind: Config, current-context: one, clusters: [{name: one, cluster: {server: 'http://127.0.0.1:1'}}], contexts: [{name: one, context: {cluster: one}}]}"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, way, err := reach(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if way.QPS != node.APIRate || way.Burst != node.APIBurst {
		t.Errorf("it asks %v times a second, %d at once", way.QPS, way.Burst)
	}
}
