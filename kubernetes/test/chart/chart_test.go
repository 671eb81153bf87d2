// Package chart tests the Helm chart takt-node and the example manifests: what they render is what the API
// server takes, and the admission policy computes what the node does.
package chart

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/cel"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/fake"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	network "github.com/takt-dev/takt/kubernetes/api/network/v1alpha1"
	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/controller"
	"github.com/takt-dev/takt/kubernetes/internal/node"
)

const (
	chartDir    = "../../../deploy/helm/takt-node"
	manifestDir = "../../../deploy/manifests"
)

var scheme = func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, appsv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, resourcev1.AddToScheme, network.AddToScheme,
	} {
		if err := add(s); err != nil {
			panic(err)
		}
	}
	return s
}()

// objects reads a stream of manifests as strictly as the API server can: an unknown field is an error.
func objects(text string) ([]runtime.Object, error) {
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	var all []runtime.Object
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		var any map[string]any
		if err := yaml.Unmarshal(document, &any); err != nil {
			return nil, err
		}
		if len(any) == 0 {
			continue
		}
		if any["kind"] == "RayCluster" {
			templates, err := rayTemplates(any)
			if err != nil {
				return nil, err
			}
			all = append(all, templates...)
			continue
		}
		if any["apiVersion"] == "monitoring.coreos.com/v1" {
			// The operator's types are not in the registries.
			all = append(all, &unstructured.Unstructured{Object: any})
			continue
		}
		if any["kind"] == "NetworkAttachmentDefinition" {
			// The tests of takt-cni attach pods by it.
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("%w in:\n%s", err, document)
		}
		all = append(all, object)
	}
}

// rayCluster is what the examples use of KubeRay's RayClusterSpec (ray.io/v1), whose custom resource definition is
// not available as a module. rayStartParams, groupName, minReplicas and maxReplicas are required there.
type rayCluster struct {
	RayVersion    string `json:"rayVersion,omitempty"`
	HeadGroupSpec struct {
		RayStartParams map[string]string      `json:"rayStartParams"`
		Template       corev1.PodTemplateSpec `json:"template"`
	} `json:"headGroupSpec"`
	WorkerGroupSpecs []struct {
		GroupName      string                 `json:"groupName"`
		Replicas       *int32                 `json:"replicas,omitempty"`
		MinReplicas    *int32                 `json:"minReplicas"`
		MaxReplicas    *int32                 `json:"maxReplicas"`
		RayStartParams map[string]string      `json:"rayStartParams"`
		Template       corev1.PodTemplateSpec `json:"template"`
	} `json:"workerGroupSpecs,omitempty"`
}

// rayTemplates are the pod templates of a RayCluster, which is read strictly.
func rayTemplates(cluster map[string]any) ([]runtime.Object, error) {
	text, err := json.Marshal(cluster["spec"])
	if err != nil {
		return nil, err
	}
	var spec rayCluster
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&spec); err != nil {
		return nil, err
	}
	if cluster["apiVersion"] != "ray.io/v1" || spec.HeadGroupSpec.RayStartParams == nil {
		return nil, fmt.Errorf("%v: not ray.io/v1, or the head has no rayStartParams", cluster["apiVersion"])
	}
	for _, group := range spec.WorkerGroupSpecs {
		if group.GroupName == "" || group.MinReplicas == nil || group.MaxReplicas == nil || group.RayStartParams == nil {
			return nil, fmt.Errorf("worker group %q lacks what KubeRay requires", group.GroupName)
		}
	}
	all := []runtime.Object{&corev1.PodTemplate{Template: spec.HeadGroupSpec.Template}}
	for _, group := range spec.WorkerGroupSpecs {
		all = append(all, &corev1.PodTemplate{Template: group.Template})
	}
	return all, nil
}

// there is what Helm sees of a cluster.
type there []runtime.Object

// GetClientFor implements engine.ClientProvider.
func (o there) GetClientFor(apiVersion, kind string) (dynamic.NamespaceableResourceInterface, bool, error) {
	group, err := schema.ParseGroupVersion(apiVersion)
	return fake.NewSimpleDynamicClient(scheme, o...).Resource(group.WithResource(strings.ToLower(kind) + "s")), true, err
}

// files are what the chart's templates give, by name, where this is there already.
func files(t *testing.T, values map[string]any, is ...runtime.Object) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	release := chartutil.ReleaseOptions{Name: "takt-node", Namespace: "takt-system", IsInstall: true}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.36.3", Major: "1", Minor: "36"}
	merged, err := chartutil.ToRenderValues(chart, values, release, capabilities)
	if err != nil {
		return nil, err
	}
	return engine.RenderWithClientProvider(chart, merged, there(is))
}

// render is what `helm template` makes of the chart.
func render(t *testing.T, values map[string]any) ([]runtime.Object, error) {
	t.Helper()
	files, err := files(t, values)
	if err != nil {
		return nil, err
	}
	var all []runtime.Object
	for name, text := range files {
		if strings.HasSuffix(name, ".tpl") || strings.HasSuffix(name, ".txt") {
			continue
		}
		found, err := objects(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

func mustRender(t *testing.T, values map[string]any) []runtime.Object {
	t.Helper()
	all, err := render(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func cores(also map[string]any) map[string]any {
	config := map[string]any{"cores": "2-7"}
	for key, value := range also {
		config[key] = value
	}
	return map[string]any{"config": config}
}

// both are the values of a release with reservations and networks.
func both() map[string]any {
	values := cores(nil)
	values["network"] = map[string]any{"enabled": true}
	return values
}

func find[T runtime.Object](t *testing.T, all []runtime.Object, name string) T {
	t.Helper()
	for _, object := range all {
		if found, ok := object.(T); ok {
			text, _ := json.Marshal(found)
			if name == "" || strings.Contains(string(text), `"name":"`+name+`"`) {
				return found
			}
		}
	}
	var none T
	t.Fatalf("the chart has no %T %s", none, name)
	return none
}

func TestTheChartRendersWhatTheAPIServerTakesAndTheAgentReads(t *testing.T) {
	all := mustRender(t, cores(map[string]any{"backend": "deadline", "scanInterval": "50ms"}))
	path := filepath.Join(t.TempDir(), "config.yaml")
	text := find[*corev1.ConfigMap](t, all, "").Data["config.yaml"]
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	config, err := node.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	want := node.DefaultConfig()
	want.Cores, want.Backend, want.ScanInterval = "2-7", "deadline", 50_000_000
	want.Viewer = "system:serviceaccount:takt-system:takt-node-view"
	if config != want {
		t.Errorf("the agent reads %+v", config)
	}
	set := find[*appsv1.DaemonSet](t, all, "")
	paths := map[string]bool{}
	for _, volume := range set.Spec.Template.Spec.Volumes {
		if volume.HostPath != nil {
			paths[volume.HostPath.Path] = true
		}
	}
	for _, mount := range set.Spec.Template.Spec.Containers[0].VolumeMounts {
		if mount.Name != "config" && !paths[mount.MountPath] {
			t.Errorf("%s is another directory inside than outside", mount.MountPath)
		}
	}
	for _, needed := range []string{config.CDIDirectory, config.KubeletPlugins, config.KubeletRegistry, filepath.Dir(config.NRISocket), config.RunDirectory, filepath.Dir(config.Gate)} {
		if !paths[needed] {
			t.Errorf("the agent has no %s", needed)
		}
	}
	for _, rule := range find[*rbacv1.ClusterRole](t, all, "").Rules {
		for _, list := range [][]string{rule.Verbs, rule.Resources, rule.APIGroups} {
			for _, word := range list {
				// Of pods it looks at those that the kubelet names.
				if word == "*" || word == "secrets" || (word == "pods" && !slices.Equal(rule.Verbs, []string{"get"})) {
					t.Errorf("rule %v gives more than needed", rule)
				}
			}
		}
	}
}

func TestMonitoringIsWhatIsAskedFor(t *testing.T) {
	kinds := func(values map[string]any) (found []string) {
		for _, object := range mustRender(t, values) {
			if of, ok := object.(*unstructured.Unstructured); ok {
				endpoints, _, _ := unstructured.NestedSlice(of.Object, "spec", "podMetricsEndpoints")
				groups, _, _ := unstructured.NestedSlice(of.Object, "spec", "groups")
				found = append(found, fmt.Sprintf("%s %s %d %d", of.GetKind(), of.GetLabels()["release"], len(endpoints), len(groups)))
			}
		}
		return found
	}
	if got := kinds(cores(nil)); len(got) > 0 {
		t.Errorf("unasked: %q", got)
	}
	values := cores(nil)
	values["monitoring"] = map[string]any{"podMonitor": true, "rules": true, "dashboards": true, "labels": map[string]any{"release": "prometheus"}}
	if got := kinds(values); !slices.Equal(got, []string{"PodMonitor prometheus 1 0", "PrometheusRule prometheus 0 3"}) {
		t.Errorf("%q", got)
	}
	values["network"], values["metrics"] = map[string]any{"enabled": true}, map[string]any{"taktd": 9465}
	if got := kinds(values); got[0] != "PodMonitor prometheus 2 0" {
		t.Errorf("with taktd: %q", got)
	}
	all := mustRender(t, values)
	ports := find[*appsv1.DaemonSet](t, all, "").Spec.Template.Spec.Containers[0].Ports
	if len(ports) != 2 || ports[1].Name != "taktd" || ports[1].ContainerPort != 9465 {
		t.Errorf("ports are %+v", ports)
	}
	dashboards := 0
	for _, object := range all {
		if of, ok := object.(*corev1.ConfigMap); ok && of.Labels["grafana_dashboard"] == "1" {
			for name, text := range of.Data {
				var dashboard map[string]any
				if err := json.Unmarshal([]byte(text), &dashboard); err != nil || dashboard["panels"] == nil {
					t.Errorf("%s: %v", name, err)
				}
				dashboards++
			}
		}
	}
	if dashboards != 2 {
		t.Errorf("%d dashboards", dashboards)
	}
}

// kubectl takt needs no more than to find the agents and to ask them, and nobody has that before it is bound.
func TestARoleHasWhatTheCommandNeeds(t *testing.T) {
	all := mustRender(t, cores(nil))
	role := find[*rbacv1.Role](t, all, "takt-node-view")
	want := []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list"}},
		{APIGroups: []string{""}, Resources: []string{"pods/proxy"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts/token"}, ResourceNames: []string{"takt-node-view"}, Verbs: []string{"create"}},
	}
	if role.Namespace != "takt-system" || !reflect.DeepEqual(role.Rules, want) {
		t.Errorf("%s: %+v", role.Namespace, role.Rules)
	}
	// The agent has to ask whose the token is.
	if agent := find[*rbacv1.ClusterRole](t, all, "takt-system-takt-node"); !slices.ContainsFunc(agent.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Equal(rule.Resources, []string{"tokenreviews"}) && slices.Equal(rule.APIGroups, []string{"authentication.k8s.io"}) && slices.Equal(rule.Verbs, []string{"create"})
	}) {
		t.Errorf("the agent may %+v", agent.Rules)
	}
	if account := find[*corev1.ServiceAccount](t, all, "takt-node-view"); account.Namespace != role.Namespace || *account.AutomountServiceAccountToken {
		t.Errorf("the account is %+v", account)
	}
	for _, object := range all {
		if binding, is := object.(*rbacv1.RoleBinding); is && binding.RoleRef.Name == role.Name {
			t.Errorf("it is bound to %v", binding.Subjects)
		}
	}
}

func TestAgentsThatAreToUninstallBringNothing(t *testing.T) {
	values := cores(nil)
	values["network"], values["uninstall"] = map[string]any{"enabled": true}, true
	set := find[*appsv1.DaemonSet](t, mustRender(t, values), "")
	args := set.Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "-uninstall") || slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "-install") }) {
		t.Errorf("the agent is started with %q", args)
	}
	if most := set.Spec.UpdateStrategy.RollingUpdate.MaxUnavailable.String(); most != "100%" {
		t.Errorf("%s of them do it at a time", most)
	}
	// Helm waits for none where all may be unavailable; kubectl waits for all.
	notes := func() string {
		all, err := files(t, values)
		if err != nil {
			t.Fatal(err)
		}
		return all["takt-node/templates/NOTES.txt"]
	}
	howTo, err := os.ReadFile("../../../docs/how-to/time-sensitive-pods.md")
	if err != nil {
		t.Fatal(err)
	}
	for where, text := range map[string]string{"the how-to": string(howTo), "the chart": strings.ReplaceAll(notes(), "takt-system", "kube-system")} {
		if !strings.Contains(text, "  kubectl rollout status daemonset/takt-node --namespace kube-system\n") {
			t.Errorf("%s does not say how to wait for them:\n%s", where, text)
		}
	}
	values["uninstall"] = false
	if text := strings.TrimSpace(notes()); text != "" {
		t.Errorf("else it says %q", text)
	}
}

func TestNetworksAreNotTakenAwayFromUnderPods(t *testing.T) {
	with := func(enabled, objects, uninstall bool) map[string]any {
		values := cores(nil)
		values["network"], values["uninstall"] = map[string]any{"enabled": enabled, "objects": objects}, uninstall
		return values
	}
	had := func(values map[string]any) []runtime.Object {
		all := mustRender(t, values)
		return []runtime.Object{find[*corev1.ConfigMap](t, all, ""), find[*appsv1.DaemonSet](t, all, "")}
	}
	// rolled is how far a DaemonSet's agents are.
	rolled := func(objects []runtime.Object, generation, observed int64, updated, ready int32) []runtime.Object {
		set := objects[1].(*appsv1.DaemonSet)
		set.Generation = generation
		set.Status = appsv1.DaemonSetStatus{ObservedGeneration: observed, DesiredNumberScheduled: 3, UpdatedNumberScheduled: updated, NumberReady: ready}
		return objects
	}
	listed := &network.TaktNetwork{ObjectMeta: metav1.ObjectMeta{Name: "pods"}}
	for name, tc := range map[string]struct {
		had     []runtime.Object
		now     map[string]any
		refused string
	}{
		"nothing was there":        {nil, with(false, false, false), ""},
		"none before":              {had(with(false, false, false)), with(false, false, false), ""},
		"kept":                     {append(had(with(true, true, false)), listed), with(true, true, false), ""},
		"off":                      {had(with(true, false, false)), with(false, false, false), "network.enabled is false, and was true"},
		"off and uninstalled":      {had(with(true, false, false)), with(false, false, true), "network.enabled is false, and was true"},
		"uninstalled":              {had(with(true, true, false)), with(true, true, true), ""},
		"off after that":           {rolled(had(with(true, true, true)), 2, 2, 3, 3), with(false, false, false), ""},
		"off before it is seen":    {rolled(had(with(true, true, true)), 2, 1, 3, 3), with(false, false, false), "network.enabled is false, and was true"},
		"off before all are there": {rolled(had(with(true, true, true)), 2, 2, 2, 3), with(false, false, false), "network.enabled is false, and was true"},
		"off before all are done":  {rolled(had(with(true, true, true)), 2, 2, 3, 2), with(false, false, false), "network.enabled is false, and was true"},
		"off before any is there":  {rolled(had(with(true, true, true)), 2, 2, 0, 0), with(false, false, false), "network.enabled is false, and was true"},
		"objects off":              {had(with(true, true, false)), with(true, false, false), ""},
		"objects off with objects": {append(had(with(true, true, false)), listed), with(true, false, false), "TaktNetwork pods would stay"},
	} {
		_, err := files(t, tc.now, tc.had...)
		if tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheChartGivesTheAgentWhatANetworkNeeds(t *testing.T) {
	values := cores(nil)
	values["network"] = map[string]any{"enabled": true, "unattached": "start", "claimed": []any{5}}
	all := mustRender(t, values)
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(find[*corev1.ConfigMap](t, all, "").Data["config.yaml"]), 0o644); err != nil {
		t.Fatal(err)
	}
	config, err := node.LoadConfig(path)
	if err != nil {
		t.Fatal(err)
	}
	want := node.NetworkConfig{
		Sockets: "/run/takt/cni", AdminSocket: "/run/takt/admin.sock", Plugins: "/opt/cni/bin", Configurations: "/etc/cni/net.d",
		Preload: "/usr/lib/x86_64-linux-gnu/takt-preload", Unattached: node.StartUnattached, Unlisted: node.RefuseUnlisted, Library: "/usr/lib/x86_64-linux-gnu/libtakt.so.0", Path: node.PathBoth, OtherTraffic: node.OtherKernel, Takt: "/usr/bin/takt", Claimed: []uint32{5},
	}
	if config.Network == nil || !reflect.DeepEqual(*config.Network, want) {
		t.Errorf("the agent reads %+v", config.Network)
	}
	pod := find[*appsv1.DaemonSet](t, all, "").Spec.Template.Spec
	if !pod.HostNetwork || !slices.Contains(pod.Containers[0].Args, "-install-cni=/takt-cni") {
		t.Errorf("the plugin is not installed by %v", pod.Containers[0].Args)
	}
	for _, needed := range []string{filepath.Dir(want.AdminSocket), want.Plugins} {
		if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == needed }) ||
			!slices.ContainsFunc(pod.Volumes, func(v corev1.Volume) bool { return v.HostPath != nil && v.HostPath.Path == needed }) {
			t.Errorf("the agent has no %s", needed)
		}
	}
}

func TestReservationsCanBeLeftOut(t *testing.T) {
	all := mustRender(t, map[string]any{"config": map[string]any{"cores": "none"}, "network": map[string]any{"enabled": true}})
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(find[*corev1.ConfigMap](t, all, "").Data["config.yaml"]), 0o644); err != nil {
		t.Fatal(err)
	}
	if config, err := node.LoadConfig(path); err != nil || config.Cores != node.NoCores {
		t.Fatalf("the agent reads %+v, %v", config, err)
	}
	for _, object := range all {
		switch object := object.(type) {
		case *resourcev1.DeviceClass:
			if object.Name != "network.takt.dev" {
				t.Errorf("class %s of what nobody offers", object.Name)
			}
		case *admissionv1.ValidatingAdmissionPolicy:
			if strings.HasSuffix(object.Name, "resourceclaims") || strings.HasSuffix(object.Name, "resourceclaimtemplates") {
				t.Errorf("policy %s on what nobody offers", object.Name)
			}
		}
	}
}

func TestTheControllerIsThereWithTheObjectsAndHasNoPrivilege(t *testing.T) {
	with := func(more map[string]any) []runtime.Object {
		values := map[string]any{"config": map[string]any{"cores": "none"}, "network": map[string]any{"enabled": true, "objects": true}}
		for key, value := range more {
			values[key] = value
		}
		return mustRender(t, values)
	}
	all := with(nil)
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(find[*corev1.ConfigMap](t, all, "").Data["config.yaml"]), 0o644); err != nil {
		t.Fatal(err)
	}
	if config, err := node.LoadConfig(path); err != nil || !config.Network.Objects || !config.Network.Peers {
		t.Fatalf("the agent reads %+v, %v", config.Network, err)
	}
	pod := find[*appsv1.Deployment](t, all, "").Spec.Template.Spec
	if c := pod.Containers[0]; !*pod.SecurityContext.RunAsNonRoot || *c.SecurityContext.AllowPrivilegeEscalation || len(pod.Volumes) > 0 || pod.HostNetwork || pod.HostPID {
		t.Errorf("the controller runs as %+v", pod)
	}
	for _, object := range all {
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			for _, rule := range o.Rules {
				for _, words := range [][]string{rule.Resources, rule.Verbs, rule.APIGroups} {
					if slices.Contains(words, "*") || slices.Contains(words, "secrets") {
						t.Errorf("%s has %v", o.Name, rule)
					}
				}
				// Only the controller writes what nodes believe of each other.
				if slices.Contains(rule.Resources, "taktnodes") && slices.Contains(rule.Verbs, "update") && !strings.HasSuffix(o.Name, "-controller") {
					t.Errorf("%s may write the specs of nodes: %v", o.Name, rule)
				}
			}
		}
	}
	for _, object := range with(map[string]any{"controller": map[string]any{"create": false}}) {
		if _, there := object.(*appsv1.Deployment); there {
			t.Error("a second release has a second controller")
		}
	}
}

func TestAnAgentSpeaksForItsOwnNodeAlone(t *testing.T) {
	p := newPolicy(t, mustRender(t, map[string]any{"config": map[string]any{"cores": "none"}, "network": map[string]any{"enabled": true, "objects": true}}), "-taktnodes")
	// An update is of the status alone: RBAC has no other.
	mine := network.TaktNodeSpec{Peer: &network.Peer{Address: "192.0.2.1:7400", Key: "mine"}}
	for _, c := range []struct {
		operation, name string
		spec            network.TaktNodeSpec
		taken           bool
	}{
		{"CREATE", "node-1", network.TaktNodeSpec{}, true},
		{"CREATE", "node-1", mine, false},
		{"CREATE", "node-2", network.TaktNodeSpec{}, false},
		{"UPDATE", "node-1", mine, true},
		{"UPDATE", "node-2", mine, false},
	} {
		err := p.admit(&network.TaktNode{ObjectMeta: metav1.ObjectMeta{Name: c.name}, Spec: c.spec}, map[string]any{"operation": c.operation, "userInfo": map[string]any{
			"username": "system:serviceaccount:takt-system:takt-node",
			"extra":    map[string]any{"authentication.kubernetes.io/node-name": []any{"node-1"}},
		}})
		if (err == nil) != c.taken {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestValuesThatMeanNothingAreRefused(t *testing.T) {
	for _, values := range []map[string]any{
		{},
		{"config": map[string]any{"cores": ""}},
		{"config": map[string]any{"cores": "2-"}},
		{"config": map[string]any{"cores": "none"}},
		{"config": map[string]any{"cores": "7-2"}},
		{"config": map[string]any{"cores": "0,7-2"}},
		cores(map[string]any{"backend": "cfs"}),
		cores(map[string]any{"bound": 1_000_001}),
		cores(map[string]any{"core": "1"}),
		{"config": map[string]any{"cores": "1"}, "colour": "red"},
		{"config": map[string]any{"cores": "1"}, "hostPaths": map[string]any{"cdi": "relative"}},
		{"config": map[string]any{"cores": "1"}, "network": map[string]any{"enabled": true, "preload": ""}},
		{"config": map[string]any{"cores": "1"}, "network": map[string]any{"unattached": "perhaps"}},
		{"config": map[string]any{"cores": "1"}, "network": map[string]any{"enabled": true, "path": "bridge"}},
		{"config": map[string]any{"cores": "1"}, "network": map[string]any{"enabled": true, "takt": "takt"}},
		{"config": map[string]any{"cores": "1"}, "network": map[string]any{"objects": true}},
		{"config": map[string]any{"cores": "1"}, "controller": map[string]any{"lead": "soon"}},
		{"config": map[string]any{"cores": "1"}, "controller": map[string]any{"keyRotation": "30m"}},
		{"config": map[string]any{"cores": "1"}, "controller": map[string]any{"keyRotation": "30d"}},
	} {
		if _, err := render(t, values); err == nil {
			t.Errorf("%v was rendered", values)
		}
	}
}

// What the chart takes for the lead the controller takes, and no other.
func TestALeadIsOneThatTheControllerTakes(t *testing.T) {
	for lead, taken := range map[string]bool{
		"3s": false, "7s": false, "8s": true, "10s": true, "99s": true, "100s": true, "2999s": true, "3599s": true, "3600s": true, "3601s": false, "9999s": false,
		"7999ms": false, "8000ms": true, "12500ms": true, "3599999ms": true, "3600000ms": true, "3600001ms": false, "8ms": false,
		"0m": false, "1m": true, "60m": true, "61m": false, "08s": false, "8": false, "": false,
	} {
		values := both()
		values["network"] = map[string]any{"enabled": true, "objects": true}
		values["controller"] = map[string]any{"lead": lead}
		if _, err := render(t, values); (err == nil) != taken {
			t.Errorf("lead %q: %v", lead, err)
		}
		parsed, err := time.ParseDuration(lead)
		if takes := err == nil && lead != "08s" && parsed >= controller.MinLead && parsed <= controller.MaxLead; takes != taken {
			t.Errorf("the controller takes %q: %v", lead, takes)
		}
	}
}

// What the chart takes for the age of keys the controller takes, and no other; without one keys are not changed by themselves.
func TestAnAgeOfKeysIsOneThatTheControllerTakes(t *testing.T) {
	for age, flag := range map[string]string{
		"": "0", "0": "0", "1h": "1h", "720h": "720h", "0h": "", "30m": "", "30d": "", "1h30m": "", "-1h": "", "720": "", "01h": "",
	} {
		values := both()
		values["network"] = map[string]any{"enabled": true, "objects": true}
		values["controller"] = map[string]any{"keyRotation": age}
		all, err := render(t, values)
		if (err == nil) != (flag != "") {
			t.Errorf("age %q: %v", age, err)
		}
		if err != nil {
			continue
		}
		if args := find[*appsv1.Deployment](t, all, "").Spec.Template.Spec.Containers[0].Args; !slices.Contains(args, "-key-rotation="+flag) {
			t.Errorf("age %q gives the controller %q", age, args)
		}
		if parsed, err := time.ParseDuration(flag); err != nil || parsed != 0 && parsed < controller.MinKeyRotation {
			t.Errorf("the controller does not take %q: %v", flag, err)
		}
	}
}

func TestTheDefaultsAreCleanOfLint(t *testing.T) {
	result := lint.AllWithKubeVersion(chartDir, nil, "takt-system", nil)
	for _, message := range result.Messages {
		if message.Severity > support.InfoSev {
			t.Errorf("%s", message)
		}
	}
}

func TestASecondReleaseSharesTheClassOfTheFirst(t *testing.T) {
	values := cores(nil)
	values["deviceClass"] = map[string]any{"create": false}
	for _, object := range mustRender(t, values) {
		switch o := object.(type) {
		case *resourcev1.DeviceClass:
			t.Errorf("class %s is there twice", o.Name)
		case *admissionv1.ValidatingAdmissionPolicy:
			if !strings.HasSuffix(o.Name, "-slices") {
				t.Errorf("policy %s is there twice", o.Name)
			}
		}
	}
}

func TestTheAdmissionPolicyCanBeLeftOut(t *testing.T) {
	values := cores(nil)
	values["admissionPolicy"] = map[string]any{"enabled": false}
	for _, object := range mustRender(t, values) {
		if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok && !strings.HasSuffix(policy.Name, "-slices") {
			t.Errorf("%s is still there", policy.Name)
		}
	}
}

// policy evaluates a ValidatingAdmissionPolicy with the API server's own CEL environment.
type policy struct {
	env   *cel.Env
	rules *admissionv1.ValidatingAdmissionPolicy
	// programs are compiled once.
	programs map[string]cel.Program
}

func newPolicy(t *testing.T, all []runtime.Object, suffix string) *policy {
	t.Helper()
	env, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Env(environment.StoredExpressions)
	if err == nil {
		env, err = env.Extend(cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType),
			cel.Variable("request", cel.DynType), cel.Variable("variables", cel.DynType))
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range all {
		if rules, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok && strings.HasSuffix(rules.Name, suffix) {
			p := &policy{env: env, rules: rules, programs: map[string]cel.Program{}}
			for _, text := range p.expressions() {
				ast, issues := env.Compile(text)
				if issues != nil && issues.Err() != nil {
					t.Fatalf("%s: %v", text, issues.Err())
				}
				program, err := env.Program(ast)
				if err != nil {
					t.Fatal(err)
				}
				p.programs[text] = program
			}
			return p
		}
	}
	t.Fatalf("no policy %s", suffix)
	return nil
}

func (p *policy) expressions() (all []string) {
	for _, condition := range p.rules.Spec.MatchConditions {
		all = append(all, condition.Expression)
	}
	for _, variable := range p.rules.Spec.Variables {
		all = append(all, variable.Expression)
	}
	for _, validation := range p.rules.Spec.Validations {
		all = append(all, validation.Expression)
		if validation.MessageExpression != "" {
			all = append(all, validation.MessageExpression)
		}
	}
	return all
}

// admit is nil if the policy lets the object pass; an error in an expression refuses, as failurePolicy says.
func (p *policy) admit(object, request any) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	variables := map[string]any{}
	input := map[string]any{"object": content, "oldObject": content, "request": request, "variables": variables}
	for _, condition := range p.rules.Spec.MatchConditions {
		got, _, err := p.programs[condition.Expression].Eval(input)
		if err != nil {
			return err
		}
		if got.Value() == false {
			return nil
		}
	}
	for _, variable := range p.rules.Spec.Variables {
		got, _, err := p.programs[variable.Expression].Eval(input)
		if err != nil {
			return fmt.Errorf("variable %s: %w", variable.Name, err)
		}
		variables[variable.Name] = got
	}
	// The API server evaluates all of them, and prints the whole of one that fails.
	var denied error
	for _, validation := range p.rules.Spec.Validations {
		got, _, err := p.programs[validation.Expression].Eval(input)
		if err != nil {
			return fmt.Errorf("expression failed: %w: %s", err, validation.Expression)
		}
		if got.Value() == true || denied != nil {
			continue
		}
		denied = errors.New(validation.Message)
		if validation.MessageExpression != "" {
			if message, _, err := p.programs[validation.MessageExpression].Eval(input); err == nil {
				denied = errors.New(fmt.Sprint(message.Value()))
			}
		}
	}
	return denied
}

// claimSpecs are the claims in a list of objects.
func claimSpecs(all []runtime.Object) (specs []*resourcev1.ResourceClaimSpec) {
	for _, object := range all {
		switch o := object.(type) {
		case *resourcev1.ResourceClaim:
			specs = append(specs, &o.Spec)
		case *resourcev1.ResourceClaimTemplate:
			specs = append(specs, &o.Spec.Spec)
		}
	}
	return specs
}

func TestTheExamplesPassThePolicyAndTheNode(t *testing.T) {
	chart := mustRender(t, both())
	claims, templates := newPolicy(t, chart, "-resourceclaims"), newPolicy(t, chart, "-resourceclaimtemplates")
	gateClaims, gateTemplates := newPolicy(t, chart, "-resourceclaims-gate-time"), newPolicy(t, chart, "-resourceclaimtemplates-gate-time")
	files, err := filepath.Glob(manifestDir + "/*.yaml")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all, err := objects(string(text))
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		for _, object := range all {
			switch o := object.(type) {
			case *resourcev1.ResourceClaim:
				err = errors.Join(claims.admit(o, nil), gateClaims.admit(o, nil))
			case *resourcev1.ResourceClaimTemplate:
				err = errors.Join(templates.admit(o, nil), gateTemplates.admit(o, nil))
			case *corev1.Pod:
				err = nil
				for _, container := range o.Spec.Containers {
					// Most images are root's: the kubelet would not start them.
					if as := container.SecurityContext; as != nil && as.RunAsNonRoot != nil && *as.RunAsNonRoot && as.RunAsUser == nil {
						err = fmt.Errorf("container %s must not be root, and nothing says who it is", container.Name)
					}
				}
			default:
				err = nil
			}
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
		specs := claimSpecs(all)
		if len(specs) == 0 && !slices.Contains([]string{"time-sensitive.yaml", "network.yaml", "network-attachment.yaml", "uplink.yaml"}, filepath.Base(file)) {
			t.Errorf("%s has no claim", file)
		}
		for _, spec := range specs {
			for _, config := range spec.Devices.Config {
				if config.Opaque.Driver == reservation.NetworkDriver {
					gates, err := reservation.DecodeGateTime(config.Opaque.Parameters.Raw)
					if err == nil {
						err = gates.Validate()
					}
					if err != nil {
						t.Errorf("%s: %v", file, err)
						continue
					}
					at := slices.IndexFunc(spec.Devices.Requests, func(r resourcev1.DeviceRequest) bool { return r.Name == config.Requests[0] })
					asked := spec.Devices.Requests[at].Exactly.Capacity.Requests[resourcev1.QualifiedName(reservation.ClassCapacity(int(*gates.Class)))]
					if asked.Value() != gates.BitsPerSecond() {
						t.Errorf("%s: asks for %d and needs %d", file, asked.Value(), gates.BitsPerSecond())
					}
					continue
				}
				parameters, err := reservation.Decode(config.Opaque.Parameters.Raw)
				if err != nil {
					t.Errorf("%s: %v", file, err)
					continue
				}
				for _, request := range spec.Devices.Requests {
					if request.Name != config.Requests[0] {
						continue
					}
					asked := request.Exactly.Capacity.Requests[reservation.Bandwidth]
					if err := parameters.Validate(reservation.DefaultLimits, int(max(request.Exactly.Count, 1))); err != nil {
						t.Errorf("%s: %v", file, err)
					}
					if need := parameters.PartsPerMillion(); asked.Value() != need {
						t.Errorf("%s: request %s asks for %d and needs %d", file, request.Name, asked.Value(), need)
					}
				}
			}
		}
	}
}

// podSpecs are the pods that objects make.
func podSpecs(all []runtime.Object) (specs []corev1.PodSpec) {
	for _, object := range all {
		switch o := object.(type) {
		case *corev1.Pod:
			specs = append(specs, o.Spec)
		case *corev1.PodTemplate:
			specs = append(specs, o.Template.Spec)
		case *appsv1.Deployment:
			specs = append(specs, o.Spec.Template.Spec)
		}
	}
	return specs
}

// Kubernetes evicts pods of other classes first, and gives CPU away a second time that is reserved and not requested.
func TestExamplesWithClaimsAreGuaranteed(t *testing.T) {
	files, err := filepath.Glob(manifestDir + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all, err := objects(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, spec := range podSpecs(all) {
			if !slices.ContainsFunc(spec.Containers, func(c corev1.Container) bool { return len(c.Resources.Claims) > 0 }) {
				continue
			}
			seen++
			for _, container := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
				for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
					request, limit := container.Resources.Requests[name], container.Resources.Limits[name]
					if request.IsZero() || request.Cmp(limit) != 0 {
						t.Errorf("%s: container %s requests %s of %s and is limited to %s", file, container.Name, request.String(), name, limit.String())
					}
				}
			}
		}
	}
	if seen < 6 {
		t.Errorf("only %d pods with claims were seen", seen)
	}
}

// example is a claim that passes.
func example(t *testing.T) *resourcev1.ResourceClaim {
	t.Helper()
	text, err := os.ReadFile(manifestDir + "/one-container.yaml")
	if err != nil {
		t.Fatal(err)
	}
	all, err := objects(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return all[0].(*resourcev1.ResourceClaim)
}

func parameters(fields string) runtime.RawExtension {
	return runtime.RawExtension{Raw: []byte(`{"apiVersion":"cpu.takt.dev/v1alpha1","kind":"Reservation",` + fields + `}`)}
}

func TestThePolicyRefusesWhatTheNodeWould(t *testing.T) {
	chart := mustRender(t, cores(nil))
	p, templates := newPolicy(t, chart, "-resourceclaims"), newPolicy(t, chart, "-resourceclaimtemplates")
	opaque := func(s *resourcev1.ResourceClaimSpec) *resourcev1.OpaqueDeviceConfiguration {
		return s.Devices.Config[0].Opaque
	}
	request := func(s *resourcev1.ResourceClaimSpec) *resourcev1.ExactDeviceRequest {
		return s.Devices.Requests[0].Exactly
	}
	for name, tc := range map[string]struct {
		edit func(*resourcev1.ResourceClaimSpec)
		want string
	}{
		"too little": {func(s *resourcev1.ResourceClaimSpec) {
			request(s).Capacity.Requests[reservation.Bandwidth] = resource.MustParse("299999")
		}, "less than"},
		"nothing": {func(s *resourcev1.ResourceClaimSpec) { request(s).Capacity = nil }, "less than"},
		"a deadline": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"10ms","deadline":"9ms"`)
		}, "less than"},
		"a most that is not claimed": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"10ms","maxRuntime":"4ms"`)
		}, "where there is a maxRuntime it is that one"},
		"a least above it": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"10ms","minRuntime":"4ms"`)
		}, "minRuntime is at most runtime"},
		"no parameters":  {func(s *resourcev1.ResourceClaimSpec) { s.Devices.Config = nil }, "needs parameters"},
		"of another":     {func(s *resourcev1.ResourceClaimSpec) { s.Devices.Config[0].Requests = []string{"gpu"} }, "needs parameters"},
		"another driver": {func(s *resourcev1.ResourceClaimSpec) { opaque(s).Driver = "gpu.example.com" }, "needs parameters"},
		"no runtime":     {func(s *resourcev1.ResourceClaimSpec) { opaque(s).Parameters = parameters(`"period":"10ms"`) }, "runtime and period"},
		"a bare number": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":3,"period":"10ms"`)
		}, "InvalidParameters: runtime, period, deadline, startup, minRuntime and maxRuntime are numbers"},
		"finer than a nanosecond": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3.0000001ms","period":"10ms"`)
		}, "exact to the nanosecond"},
		"too short a period": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"5us","period":"17us"`)
		}, "InvalidParameters: period is not from 100us to 4194304us"},
		"too long a period": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"5s"`)
		}, "period is not from"},
		"too short a runtime": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"1us","period":"10ms"`)
		}, "runtime is at least 1024ns"},
		"a runtime above the period": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"11ms","period":"10ms"`)
		}, "at most the deadline"},
		"a deadline above the period": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"10ms","deadline":"11ms"`)
		}, "the deadline at most the period"},
		"an unknown field": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"10ms","budget":"1ms"`)
		}, "the other fields are runtime"},
		"another version": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = runtime.RawExtension{Raw: []byte(`{"apiVersion":"cpu.takt.dev/v2","kind":"Reservation","runtime":"3ms","period":"10ms"}`)}
		}, "cpu.takt.dev/v1alpha1"},
		"no object": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = runtime.RawExtension{Raw: []byte(`"3ms"`)}
		}, "need apiVersion, kind, runtime and period"},
		"a fraction of a part": {func(s *resourcev1.ResourceClaimSpec) {
			request(s).Capacity.Requests[reservation.Bandwidth] = resource.MustParse("300000.5")
		}, "BandwidthTooSmall"},
		"minutes": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"10m"`)
		}, "units ns, us, ms, s"},
		"an empty object": {func(s *resourcev1.ResourceClaimSpec) { opaque(s).Parameters = runtime.RawExtension{Raw: []byte(`{}`)} }, "runtime and period"},
		"a huge period": {func(s *resourcev1.ResourceClaimSpec) {
			opaque(s).Parameters = parameters(`"runtime":"3ms","period":"999999999999999999999s"`)
		}, "units ns, us, ms, s"},
		"an alternative": {func(s *resourcev1.ResourceClaimSpec) {
			s.Devices.Requests[0].FirstAvailable = []resourcev1.DeviceSubRequest{{Name: "a", DeviceClassName: "cpu.takt.dev"}}
			s.Devices.Requests[0].Exactly = nil
		}, "less than"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := example(t)
			tc.edit(&claim.Spec)
			template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claim.Spec}}
			for what, err := range map[string]error{"claim": p.admit(claim, nil), "template": templates.admit(template, nil)} {
				if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "expression failed") {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	other := example(t)
	other.Spec.Devices.Requests[0].Exactly.DeviceClassName, other.Spec.Devices.Config = "gpu.example.com", nil
	if err := p.admit(other, nil); err != nil {
		t.Errorf("a claim of another class: %v", err)
	}
	if err := p.admit(example(t), nil); err != nil {
		t.Errorf("the example: %v", err)
	}
}

func TestThePolicyAndTheNodeComputeTheSame(t *testing.T) {
	p := newPolicy(t, mustRender(t, cores(nil)), "-resourceclaims")
	claim := example(t)
	rapid.Check(t, func(t *rapid.T) {
		period := reservation.Duration(rapid.Int64Range(100_000, 4_194_304_000).Draw(t, "period"))
		deadline := reservation.Duration(rapid.Int64Range(100_000, int64(period)).Draw(t, "deadline"))
		runtime := reservation.Duration(rapid.Int64Range(1024, int64(deadline)).Draw(t, "runtime"))
		fields := fmt.Sprintf(`"runtime":%q,"period":%q`, runtime, period)
		wanted := reservation.Parameters{Runtime: runtime, Period: period}
		if rapid.Bool().Draw(t, "with a deadline") {
			fields += fmt.Sprintf(`,"deadline":%q`, deadline)
			wanted.Deadline = &deadline
		}
		asked := wanted.PartsPerMillion() + rapid.Int64Range(-2, 2).Draw(t, "off by")
		if asked < 0 {
			asked = 0
		}
		claim.Spec.Devices.Config[0].Opaque.Parameters = parameters(fields)
		claim.Spec.Devices.Requests[0].Exactly.Capacity.Requests[reservation.Bandwidth] = *resource.NewQuantity(asked, resource.DecimalSI)
		node, policy := wanted.FitsCapacity(asked), p.admit(claim, nil)
		if (node == nil) != (policy == nil) {
			t.Fatalf("%s at %d ppm: the node says %v, the policy %v", fields, asked, node, policy)
		}
	})
}

func TestAnAgentPublishesOnlyItsOwnNodesCores(t *testing.T) {
	p := newPolicy(t, mustRender(t, cores(nil)), "-slices")
	slice := func(node, driver string) *resourcev1.ResourceSlice {
		s := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Driver: driver}}
		if node != "" {
			s.Spec.NodeName = &node
		}
		return s
	}
	by := func(user, node string) map[string]any {
		extra := map[string]any{}
		if node != "" {
			extra["authentication.kubernetes.io/node-name"] = []any{node}
		}
		return map[string]any{"operation": "UPDATE", "userInfo": map[string]any{"username": user, "extra": extra}}
	}
	const agent = "system:serviceaccount:takt-system:takt-node"
	for name, tc := range map[string]struct {
		slice   *resourcev1.ResourceSlice
		request map[string]any
		pass    bool
	}{
		"its own":         {slice("a", "cpu.takt.dev"), by(agent, "a"), true},
		"its networks":    {slice("a", "network.takt.dev"), by(agent, "a"), true},
		"another node's":  {slice("b", "cpu.takt.dev"), by(agent, "a"), false},
		"all nodes'":      {slice("", "cpu.takt.dev"), by(agent, "a"), false},
		"another driver":  {slice("a", "gpu.example.com"), by(agent, "a"), false},
		"from nowhere":    {slice("a", "cpu.takt.dev"), by(agent, ""), false},
		"by someone else": {slice("b", "gpu.example.com"), by("admin", ""), true},
	} {
		if err := p.admit(tc.slice, tc.request); (err == nil) != tc.pass {
			t.Errorf("%s: %v", name, err)
		}
	}
}
