package chart

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/takt-dev/takt/kubernetes/internal/node"
)

const taktdConfiguration = "[[network]]\nname = \"pods\"\ncarrier = \"vxlan:1\"\n"

// withTaktd are the values of a release that runs the nodes' runtime.
func withTaktd(also map[string]any) map[string]any {
	values := both()
	taktd := map[string]any{"enabled": true, "configuration": taktdConfiguration}
	for key, value := range also {
		taktd[key] = value
	}
	values["taktd"] = taktd
	return values
}

// named is what the chart makes of this kind and very name.
func named[T interface {
	runtime.Object
	metav1.Object
}](t *testing.T, all []runtime.Object, name string) (found T) {
	t.Helper()
	for _, object := range all {
		if one, ok := object.(T); ok && one.GetName() == name {
			return one
		}
	}
	t.Fatalf("the chart has no %T %s", found, name)
	return found
}

func TestTheNodesRuntimeIsThereWithOneSwitch(t *testing.T) {
	all := mustRender(t, withTaktd(nil))
	set := named[*appsv1.DaemonSet](t, all, "takt-node-taktd")
	agents := named[*appsv1.DaemonSet](t, all, "takt-node")
	pod := set.Spec.Template.Spec
	if pod.Containers[0].Image != "ghcr.io/takt-dev/taktd:0.1.0" || pod.InitContainers[0].Image != pod.Containers[0].Image {
		t.Errorf("the images are %s and %s", pod.Containers[0].Image, pod.InitContainers[0].Image)
	}
	if !pod.HostNetwork || !pod.HostPID || *pod.AutomountServiceAccountToken {
		t.Errorf("the pod is not the node's, or has a token: %+v", pod)
	}
	// An upgrade of the chart ends no runtime.
	if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
		t.Errorf("it is replaced %s", set.Spec.UpdateStrategy.Type)
	}
	for _, container := range append(slices.Clone(pod.InitContainers), pod.Containers...) {
		as := container.SecurityContext
		if as.Privileged != nil || *as.AllowPrivilegeEscalation || !*as.ReadOnlyRootFilesystem || !slices.Equal(as.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s has %+v", container.Name, as)
		}
	}
	// takt-cni has listeners kept over a restart, which takes a state that outlives the pod.
	if env, mounts := pod.Containers[0].Env, pod.Containers[0].VolumeMounts; len(env) != 3 || env[0].Name != "STATE_DIRECTORY" ||
		!slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == env[0].Value }) {
		t.Errorf("its state is %+v of %+v", env, mounts)
	}
	// As the unit of the package has them.
	unit, err := os.ReadFile("../../../deploy/systemd/taktd.service")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		if bounds, is := strings.CutPrefix(strings.TrimSpace(line), "CapabilityBoundingSet="); is {
			want := strings.Fields(strings.ReplaceAll(bounds, "CAP_", ""))
			var got []string
			for _, capability := range pod.Containers[0].SecurityContext.Capabilities.Add {
				got = append(got, string(capability))
			}
			if !slices.Equal(want, got) {
				t.Errorf("it has the capabilities %q, of its unit %q", got, want)
			}
		}
	}
	if text := named[*corev1.ConfigMap](t, all, "takt-node-taktd").Data["takt.toml"]; strings.TrimSpace(text) != strings.TrimSpace(taktdConfiguration) {
		t.Errorf("taktd reads %q", text)
	}

	// Neither's selector takes pods of the other.
	for one, other := range map[*appsv1.DaemonSet]*appsv1.DaemonSet{set: agents, agents: set} {
		selector, err := metav1.LabelSelectorAsSelector(one.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(one.Spec.Template.Labels)) || selector.Matches(labels.Set(other.Spec.Template.Labels)) {
			t.Errorf("%s selects %v, %v", one.Name, selector, err)
		}
	}

	// What it brings is what the agent gives to containers, in a directory that both have at the same path.
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(named[*corev1.ConfigMap](t, all, "takt-node").Data["config.yaml"]), 0o644); err != nil {
		t.Fatal(err)
	}
	config, err := node.LoadConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	brought := pod.InitContainers[0].Command[2]
	for _, path := range []string{config.Network.Preload, config.Network.Library, config.Network.Takt} {
		if filepath.Dir(path) != brought {
			t.Errorf("the agent gives %s, and %s is brought", path, brought)
		}
	}
	if filepath.Dir(brought) != filepath.Dir(config.Gate) {
		t.Errorf("%s is not beside %s: an agent that uninstalls would leave it", brought, config.Gate)
	}
	mounts := pod.InitContainers[0].VolumeMounts
	if len(mounts) != 1 || mounts[0].MountPath != filepath.Dir(brought) || !slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool {
		return v.Name == mounts[0].Name && v.HostPath != nil && v.HostPath.Path == mounts[0].MountPath
	}) {
		t.Errorf("it is brought to %s by %v", brought, mounts)
	}
}

func TestWithoutTheSwitchTheRuntimeIsThePackages(t *testing.T) {
	for _, object := range mustRender(t, both()) {
		if one, ok := object.(metav1.Object); ok && strings.Contains(one.GetName(), "taktd") {
			t.Errorf("the chart makes %s", one.GetName())
		}
	}
}

// Agents that uninstall need it as it is, and its files do not come back.
func TestTheRuntimeStaysWhileAgentsUninstall(t *testing.T) {
	values := withTaktd(map[string]any{"updateStrategy": "RollingUpdate"})
	values["uninstall"] = true
	set := named[*appsv1.DaemonSet](t, mustRender(t, values), "takt-node-taktd")
	if set.Spec.UpdateStrategy.Type != appsv1.OnDeleteDaemonSetStrategyType || len(set.Spec.Template.Spec.InitContainers) > 0 {
		t.Errorf("it is replaced %s, and brings %v", set.Spec.UpdateStrategy.Type, set.Spec.Template.Spec.InitContainers)
	}
	values["uninstall"] = false
	if kind := named[*appsv1.DaemonSet](t, mustRender(t, values), "takt-node-taktd").Spec.UpdateStrategy.Type; kind != appsv1.RollingUpdateDaemonSetStrategyType {
		t.Errorf("else it is replaced %s", kind)
	}
}

// Agents that uninstalled have taken away what it brought; those that follow bring it back, of its image.
func TestAnUninstallThatIsTakenBackBringsBackWhatContainersNeed(t *testing.T) {
	values := withTaktd(nil)
	all := mustRender(t, values)
	brings := named[*appsv1.DaemonSet](t, all, "takt-node-taktd").Spec.Template.Spec.InitContainers[0]
	agents := named[*appsv1.DaemonSet](t, all, "takt-node").Spec.Template.Spec.InitContainers
	if len(agents) != 1 || agents[0].Image != brings.Image || !slices.Equal(agents[0].Command, slices.Insert(slices.Clone(brings.Command), 1, "-missing")) {
		t.Errorf("agents bring %+v", agents)
	}
	values["uninstall"] = true
	if agents := named[*appsv1.DaemonSet](t, mustRender(t, values), "takt-node").Spec.Template.Spec.InitContainers; len(agents) > 0 {
		t.Errorf("agents that uninstall bring %+v", agents)
	}
}

func TestAnotherDirectoryOfSocketsIsAlsoTaktds(t *testing.T) {
	values := withTaktd(map[string]any{"configuration": "  # indented\n" + taktdConfiguration})
	values["hostPaths"] = map[string]any{"takt": "/srv/takt"}
	all := mustRender(t, values)
	env := named[*appsv1.DaemonSet](t, all, "takt-node-taktd").Spec.Template.Spec.Containers[0].Env
	for name, want := range map[string]string{"TAKT_ADMIN_SOCKET": "/srv/takt/admin.sock", "TAKT_SOCKET": "/srv/takt/takt.sock"} {
		if !slices.Contains(env, corev1.EnvVar{Name: name, Value: want}) {
			t.Errorf("%s is not %s: %v", name, want, env)
		}
	}
	if text := named[*corev1.ConfigMap](t, all, "takt-node-taktd").Data["takt.toml"]; text != "  # indented\n"+taktdConfiguration {
		t.Errorf("taktd reads %q", text)
	}
}

func TestARuntimeIsNotTakenAwayFromUnderPods(t *testing.T) {
	all := mustRender(t, withTaktd(nil))
	agents := named[*appsv1.DaemonSet](t, all, "takt-node")
	had := []runtime.Object{named[*corev1.ConfigMap](t, all, "takt-node"), agents, named[*appsv1.DaemonSet](t, all, "takt-node-taktd")}
	if _, err := files(t, withTaktd(nil), had...); err != nil {
		t.Errorf("kept: %v", err)
	}
	if _, err := files(t, both(), had...); err == nil || !strings.Contains(err.Error(), "taktd.enabled is false, and was true") {
		t.Errorf("taken away: %v", err)
	}
	leaving := withTaktd(nil)
	leaving["uninstall"] = true
	gone := named[*appsv1.DaemonSet](t, mustRender(t, leaving), "takt-node")
	gone.Generation = 2
	gone.Status = appsv1.DaemonSetStatus{ObservedGeneration: 2, DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberReady: 3}
	had[1] = gone
	if _, err := files(t, both(), had...); err != nil {
		t.Errorf("taken away after the agents: %v", err)
	}
}

func TestARuntimeThatCouldServeNobodyIsRefused(t *testing.T) {
	alone := cores(nil)
	alone["taktd"] = map[string]any{"enabled": true, "configuration": taktdConfiguration}
	for want, values := range map[string]map[string]any{
		"network.enabled is false":       alone,
		"taktd.configuration is missing": withTaktd(map[string]any{"configuration": ""}),
		"updateStrategy":                 withTaktd(map[string]any{"updateStrategy": "Recreate"}),
		"terminationGracePeriodSeconds":  withTaktd(map[string]any{"terminationGracePeriodSeconds": 0}),
	} {
		if _, err := render(t, values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
