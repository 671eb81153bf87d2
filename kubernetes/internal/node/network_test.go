package node

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
)

func TestContainersOfAttachedPodsGetTheirRuntime(t *testing.T) {
	s := newSite(t)
	s.stop()
	s.config.Network = &NetworkConfig{Sockets: filepath.Join(s.dir, "cni"), Preload: "/usr/lib/libtakt_preload.so"}
	if err := s.config.Network.validate(); err != nil {
		t.Fatal(err)
	}
	s.startAgent()
	for _, name := range []string{"chained/eth0", "both/eth0", "both/net1"} {
		if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	sensitive := map[string]string{"takt.dev/time-sensitive": "true"}
	with := func(more ...string) map[string]string {
		all := map[string]string{"takt.dev/time-sensitive": "true"}
		for at := 0; at < len(more); at += 2 {
			all[more[at]] = more[at+1]
		}
		return all
	}
	preloaded := []string{"LD_PRELOAD=/run/takt/libtakt_preload.so", "TAKT_SOCKET=/run/takt/pod/eth0/takt.sock"}
	for name, tc := range map[string]struct {
		sandbox     string
		annotations map[string]string
		env         []string
		want        []string
		refused     string
	}{
		"time-sensitive":            {"chained", sensitive, nil, preloaded, ""},
		"required":                  {"chained", with("takt.dev/preload", "required"), nil, append(slices.Clone(preloaded), "TAKT_PRELOAD=required"), ""},
		"another container is not":  {"chained", with("takt.dev/preload.other", "off"), nil, preloaded, ""},
		"this container is not":     {"chained", with("takt.dev/preload", "required", "takt.dev/preload.main", "off"), nil, preloaded[1:], ""},
		"attached, not marked":      {"both", nil, nil, preloaded[1:], ""},
		"second interface":          {"both", with("takt.dev/interface", "net1"), nil, []string{preloaded[0], "TAKT_SOCKET=/run/takt/pod/net1/takt.sock"}, ""},
		"its own environment":       {"chained", sensitive, []string{"LD_PRELOAD=/a.so:/b.so", "TAKT_SOCKET=/x"}, []string{preloaded[0] + ":/a.so:/b.so"}, ""},
		"neither":                   {"none", nil, nil, nil, ""},
		"marked as not":             {"none", map[string]string{"takt.dev/time-sensitive": "false"}, nil, nil, ""},
		"marked, not attached":      {"none", sensitive, nil, nil, codeUnattached},
		"marked by another word":    {"chained", map[string]string{"takt.dev/time-sensitive": "yes"}, nil, nil, codeAnnotation},
		"preload by another word":   {"chained", with("takt.dev/preload", "true"), nil, nil, codeAnnotation},
		"interface that is not one": {"chained", with("takt.dev/interface", "../eth0"), nil, nil, codeAnnotation},
	} {
		t.Run(name, func(t *testing.T) {
			created, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
				Pod:       &api.PodSandbox{Id: tc.sandbox, Namespace: "default", Name: name, Uid: name, Annotations: tc.annotations},
				Container: &api.Container{Id: name, PodSandboxId: tc.sandbox, Name: "main", Env: tc.env},
			})
			if tc.refused != "" {
				if told := s.events.of(name, reasonNetwork); err == nil || len(told) != 1 || !strings.HasPrefix(told[0], tc.refused+": ") {
					t.Errorf("%v, told %q", err, told)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var env, mounts []string
			for _, one := range created.GetAdjust().GetEnv() {
				env = append(env, one.Key+"="+one.Value)
			}
			for _, one := range created.GetAdjust().GetMounts() {
				if !slices.Contains(one.Options, "ro") || !slices.Contains(one.Options, "nosuid") {
					t.Errorf("mount %v may be changed", one)
				}
				mounts = append(mounts, one.Source+" "+one.Destination)
			}
			slices.Sort(env)
			slices.Sort(tc.want)
			var wanted []string
			if tc.sandbox != "none" {
				wanted = append(wanted, filepath.Join(s.config.Network.Sockets, tc.sandbox)+" /run/takt/pod")
			}
			if len(env) > 0 && strings.HasPrefix(env[0], "LD_PRELOAD=") {
				wanted = append(wanted, "/usr/lib/libtakt_preload.so /run/takt/libtakt_preload.so")
			}
			if !slices.Equal(env, tc.want) || !slices.Equal(mounts, wanted) {
				t.Errorf("environment %q and mounts %q, and not %q and %q", env, mounts, tc.want, wanted)
			}
		})
	}
	s.stop()
	s.config.Network.Unattached = StartUnattached
	s.startAgent()
	_, err := s.runtime.CreateContainer(context.Background(), &adaptation.CreateContainerRequest{
		Pod:       &api.PodSandbox{Id: "none", Namespace: "default", Name: "started", Uid: "started", Annotations: sensitive},
		Container: &api.Container{Id: "started", PodSandboxId: "none", Name: "main"},
	})
	if told := s.events.of("started", reasonUnattached); err != nil || len(told) != 1 {
		t.Errorf("%v, told %q", err, told)
	}
}

func TestTheNetworkOfAConfigurationIsChecked(t *testing.T) {
	for text, want := range map[string]string{
		"cores: all\nnetwork: {preload: /l.so}":                        "",
		"cores: all\nnetwork: {}":                                      "network.preload",
		"cores: all\nnetwork: {preload: /l.so, sockets: run}":          "network.sockets",
		"cores: all\nnetwork: {preload: /l.so, unattached: perhaps}":   "network.unattached",
		"cores: all\nnetwork: {preload: /l.so, sockts: /run/takt/cni}": "sockts",
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := LoadConfig(file)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
		if err == nil && (config.Network.Sockets != "/run/takt/cni" || config.Network.Unattached != RefuseUnattached) {
			t.Errorf("%+v", config.Network)
		}
	}
}
