package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// section is what the manual has below a heading, up to the next one.
func section(t *testing.T, heading string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository(), "docs/how-to/time-sensitive-pods.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, found := strings.Cut(string(page), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("the manual has no %q", heading)
	}
	within, _, _ := strings.Cut(after, "\n## ")
	return within
}

func repository() string { return filepath.Join(os.Getenv("TAKT_MANIFESTS"), "../..") }

// lines are those to type of a section, of its blocks one after the other, without the indentation of the page.
func lines(text string) (blocks []string) {
	in := false
	for line := range strings.Lines(text) {
		typed, is := strings.CutPrefix(line, "    ")
		if is && !in {
			blocks = append(blocks, "")
		}
		if in = is; is {
			blocks[len(blocks)-1] += typed
		}
	}
	return blocks
}

// typist is a shell in the repository with kubectl and an editor that puts takt-cni behind the other plugins.
type typist struct{ environment []string }

func newTypist(t *testing.T) typist {
	t.Helper()
	here := t.TempDir()
	snippet := regexp.MustCompile("(?s)```json\n(.*?)```").FindStringSubmatch(section(t, "A node"))
	if snippet == nil || !json.Valid([]byte(snippet[1])) {
		t.Fatalf("the manual has no takt-cni: %q", snippet)
	}
	for name, text := range map[string]string{
		"kubectl":       "#!/bin/sh\nexec kube kubectl \"$@\"\n",
		"takt-cni.json": snippet[1],
		"editor": `#!/usr/bin/python3
import pathlib, re, sys
file = pathlib.Path(sys.argv[1])
text, count = re.subn(r"\n( *)\]", lambda end: ",\n" + "".join(end[1] + "  " + line + "\n" for line in open("` + here + `/takt-cni.json").read().splitlines()) + end[1] + "]", file.read_text(), count=1)
sys.exit("there is no list of plugins" if count != 1 else file.write_text(text) and None)
`,
	} {
		if err := os.WriteFile(filepath.Join(here, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return typist{append(os.Environ(), "PATH="+here+":"+os.Getenv("PATH"), "KUBE_EDITOR="+here+"/editor")}
}

// types runs lines as they are, each of which has to succeed.
func (p typist) types(t *testing.T, text string) string {
	t.Helper()
	shell := exec.Command("bash", "-euxc", text)
	shell.Dir, shell.Env = repository(), p.environment
	out, err := shell.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatalf("%v of:\n%s", err, text)
	}
	return string(out)
}

// flannelsOwn is what Flannel has in the cluster for its configuration: a ConfigMap, and a DaemonSet whose pods copy it to their nodes.
// Its plugin would take each node's part of the addresses from a file; here the copy has it.
func flannelsOwn(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/etc/cni/net.d/10-pods.conflist")
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Name    string            `json:"name"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Plugins) != 1 || !strings.Contains(string(list.Plugins[0]), "10.67.1.0/24") {
		t.Fatalf("the network of node-1 is %s: %v", text, err)
	}
	plugin := strings.ReplaceAll(strings.Join(strings.Fields(string(list.Plugins[0])), " "), "10.67.1.0/24", "10.67.SEGMENT.0/24")
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: kube-flannel}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kube-flannel-cfg, namespace: kube-flannel}
data:
  cni-conf.json: |
    {
      "name": "pods",
      "cniVersion": "1.0.0",
      "plugins": [
        %s
      ]
    }
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: kube-flannel}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 0
      initContainers:
        - name: install-cni
          image: takt.test/guest:1
          imagePullPolicy: Never
          command:
            - /usr/bin/python3
            - -c
            - |
              import os
              text = open("/flannel/cni-conf.json").read().replace("SEGMENT", os.environ["NODE"].removeprefix("node-"))
              open("/etc/cni/net.d/.new", "w").write(text)
              os.rename("/etc/cni/net.d/.new", "/etc/cni/net.d/10-pods.conflist")
          env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
          volumeMounts: &mounts
            - {name: flannel, mountPath: /flannel}
            - {name: cni, mountPath: /etc/cni/net.d}
            - {name: usr, mountPath: /usr, readOnly: true}
            - {name: lib, mountPath: /lib, readOnly: true}
            - {name: lib64, mountPath: /lib64, readOnly: true}
      containers:
        - {name: kube-flannel, image: "takt.test/guest:1", imagePullPolicy: Never}
      volumes:
        - {name: flannel, configMap: {name: kube-flannel-cfg}}
        - {name: cni, hostPath: {path: /etc/cni/net.d}}
        - {name: usr, hostPath: {path: /usr}}
        - {name: lib, hostPath: {path: /usr/lib}}
        - {name: lib64, hostPath: {path: /usr/lib64}}
`, plugin)
}

// From nothing to a pod that sends at its launch times, and to nothing again, as the page has it.
func TestManualsFirstPodAndUninstallAreWhatThePageSays(t *testing.T) {
	if !manual || os.Getenv("TAKT_MULTUS") != "" {
		t.Skip("a cluster of its own: make test-cluster-manual")
	}
	user := newTypist(t)
	file := filepath.Join(t.TempDir(), "flannel.yaml")
	if err := os.WriteFile(file, []byte(flannelsOwn(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "apply", "-f", file)
	kubectl(t, "-n", "kube-flannel", "rollout", "status", "daemonset", "--timeout=3m")
	t.Cleanup(func() { _ = os.Remove(filepath.Join(repository(), "takt.toml")) })

	flannel, _, _ := strings.Cut(section(t, "In ten lines"), "\nWith Multus")
	ten := lines(flannel)
	if len(ten) != 1 || strings.Count(ten[0], "\n") > 10 {
		t.Fatalf("the first pod is not one block of ten lines: %q", ten)
	}
	if seen := user.types(t, ten[0]); !regexp.MustCompile(`(?m)^ *default +talker +node-[12] +pods \(eth0\) .* taking .* ok`).MatchString(seen) {
		t.Error("kubectl takt does not show that the pod is served")
	}

	// A program that names launch times, on the other node than who hears it. What the machine is too busy to send at its time is
	// dropped, as the configuration of the page has it: it goes on until enough has been heard.
	sends := func(name, listener string) {
		t.Helper()
		create(t, on("node-1", python(listener, nil, listening)))
		says(t, listener, "listening")
		create(t, on("node-2", python(name, timeSensitive, steady, addressOf(t, listener))))
		if line := says(t, listener, "early"); line != "0 early from "+addressOf(t, name) {
			t.Error(line)
		}
		until(t, "kubectl takt counts what has left at its time", func() bool {
			var shown struct {
				Pods []struct {
					Pod      string
					Attached []struct{ Launches struct{ Left int } }
				}
			}
			if err := json.Unmarshal([]byte(kubectl(t, "takt", "-o", "json")), &shown); err != nil {
				t.Fatal(err)
			}
			for _, one := range shown.Pods {
				if one.Pod == name {
					return len(one.Attached) == 1 && one.Attached[0].Launches.Left >= 20
				}
			}
			return false
		})
		remove(t, listener, "")
	}
	sends("first", "hears")
	remove(t, "first", "")

	// A new runtime for one node: an upgrade ends none, and what the page says replaces it.
	upgraded := lines(section(t, "Upgrade"))
	of := func(node string) (uid string) {
		pods, err := client.CoreV1().Pods("kube-system").List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=taktd", FieldSelector: "spec.nodeName=" + node})
		if err != nil || len(pods.Items) != 1 {
			return ""
		}
		return string(pods.Items[0].UID)
	}
	before := map[string]string{"node-1": of("node-1"), "node-2": of("node-2")}
	user.types(t, upgraded[0])
	kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/takt-node", "--timeout=3m")
	for node, uid := range before {
		if uid == "" || of(node) != uid {
			t.Errorf("an upgrade has replaced taktd of %s: %q", node, of(node))
		}
	}
	remove(t, "talker", "")
	replaced := strings.ReplaceAll(upgraded[1], "worker-3", "node-2")
	user.types(t, replaced)
	if of("node-1") != before["node-1"] || of("node-2") == before["node-2"] {
		t.Errorf("taktd is replaced on another node: %q", []string{of("node-1"), of("node-2")})
	}
	sends("second", "listens")

	// All of it goes: pods first, then takt-cni from the network.
	remove(t, "second", "")
	kubectl(t, "apply", "-f", file)
	kubectl(t, "-n", "kube-flannel", "rollout", "restart", "daemonset")
	kubectl(t, "-n", "kube-flannel", "rollout", "status", "daemonset", "--timeout=3m")
	away := lines(section(t, "Uninstall"))
	user.types(t, away[len(away)-1])
	for _, node := range []string{"node-1", "node-2"} {
		until(t, "nothing of Takt is left on "+node, func() bool { return len(leftOn(t, node)) == 0 })
		until(t, "taktd of "+node+" has ended", func() bool { return of(node) == "" })
	}
	if pid := processWhich(func(_ string, words []string) bool { return filepath.Base(words[0]) == "taktd" }); pid > 0 {
		t.Errorf("process %s still runs", strings.Join(commandLine(pid), " "))
	}
	nothingInTheCluster(t)
}

// definitions is the kind that Multus brings.
const definitions = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: network-attachment-definitions.k8s.cni.cncf.io}
spec:
  group: k8s.cni.cncf.io
  scope: Namespaced
  names: {plural: network-attachment-definitions, singular: network-attachment-definition, kind: NetworkAttachmentDefinition, shortNames: [net-attach-def]}
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {config: {type: string}}}}}
`

// The same with Multus, for which the cluster has a stand-in, on one node.
func TestManualsFirstPodBesideThePrimaryNetworkIsWhatThePageSays(t *testing.T) {
	if os.Getenv("TAKT_MULTUS") == "" {
		t.Skip("a cluster of its own: make test-cluster-manual")
	}
	user := newTypist(t)
	file := filepath.Join(t.TempDir(), "definitions.yaml")
	if err := os.WriteFile(file, []byte(definitions), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, "apply", "-f", file)
	kubectl(t, "wait", "--for", "condition=Established", "crd/network-attachment-definitions.k8s.cni.cncf.io", "--timeout=1m")
	t.Cleanup(func() { _ = os.Remove(filepath.Join(repository(), "takt.toml")) })

	blocks := lines(section(t, "In ten lines"))
	if len(blocks) != 3 || strings.Count(blocks[2], "\n") != 2 {
		t.Fatalf("the page has other lines: %q", blocks)
	}
	user.types(t, strings.NewReplacer("THIS-NODE", "10.66.0.1", "OTHER-NODE", "10.66.0.3", "eth1", "node0").Replace(blocks[1]))
	instead := strings.SplitAfter(blocks[2], "\n")
	var text strings.Builder
	for line := range strings.Lines(blocks[0]) {
		switch {
		case strings.HasPrefix(line, "printf "):
			text.WriteString(instead[0])
		case strings.Contains(line, "time-sensitive.yaml"):
			text.WriteString(instead[1])
		case !strings.Contains(line, "kube-flannel"):
			text.WriteString(line)
		}
	}
	if seen := user.types(t, text.String()); !regexp.MustCompile(`(?m)^ *default +talker +node-1 +tsn \(net1\) .* taking .* ok`).MatchString(seen) {
		t.Error("kubectl takt does not show that the pod is served")
	}

	// A program that names launch times sends there, by the interface that its pod has beside the primary one.
	onTSN := map[string]string{"k8s.v1.cni.cncf.io/networks": "tsn", "takt.dev/interface": "net1", "takt.dev/preload": "off"}
	create(t, python("listener", onTSN, listening))
	says(t, "listener", "listening")
	sending := map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload": "required"}
	for _, name := range []string{"k8s.v1.cni.cncf.io/networks", "takt.dev/interface"} {
		sending[name] = onTSN[name]
	}
	create(t, python("sender", sending, steady, addressAt(t, "listener")))
	if line := says(t, "listener", "early"); line != "0 early from "+addressAt(t, "sender") {
		t.Error(line)
	}
}

// addressAt is an attached pod's address at net1.
func addressAt(t *testing.T, pod string) (address string) {
	t.Helper()
	until(t, pod+" is attached", func() bool {
		var shown struct {
			Pods []struct {
				Pod      string
				Attached []struct {
					Interface string
					Addresses []string
				}
			}
		}
		if err := json.Unmarshal([]byte(kubectl(t, "takt", "-o", "json")), &shown); err != nil {
			t.Fatal(err)
		}
		for _, one := range shown.Pods {
			if one.Pod == pod && len(one.Attached) == 1 && one.Attached[0].Interface == "net1" {
				address, _, _ = strings.Cut(one.Attached[0].Addresses[0], "/")
			}
		}
		return address != ""
	})
	return address
}
