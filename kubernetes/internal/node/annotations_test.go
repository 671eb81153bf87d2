package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/adaptation"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"
)

func TestAnAnnotationThatNobodyReadsIsRefusedByTheOneThatIsMeant(t *testing.T) {
	for key, meant := range map[string]string{
		"takt.dev/prelaod": "write takt.dev/preload if", "takt.dev/prelaod.main": "write takt.dev/preload if", "takt.dev/timesensitive": "write takt.dev/time-sensitive if",
		"takt.dev/Class": "write takt.dev/class if", "takt.dev/class.main": "write takt.dev/class if", "takt.dev/preload.": "write takt.dev/preload if", "takt.dev/others": "write one of takt.dev/time-sensitive, ",
		"takt.dev/preload": "", "takt.dev/preload.main": "", "takt.dev/library.main": "", "takt.dev/time-sensitive": "", "takt.dev/other-traffic": "",
		"cpu.takt.dev/any": "", "network.takt.dev/any": "", "example.com/takt.dev": "",
	} {
		err := checkAnnotations(map[string]string{key: "true", "takt.dev/interface": "eth0"})
		if meant == "" && err != nil || meant != "" && (err == nil || !strings.Contains(err.Error(), `"`+key+`"`) || !strings.Contains(err.Error(), meant)) {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// known has the API server know every pod that it is asked for, by a UID that is its name, with containers main and other.
func (s *site) known() {
	s.says(func(action k8stesting.Action) (bool, runtime.Object, error) {
		name := action.(k8stesting.GetAction).GetName()
		return true, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: action.GetNamespace(), Name: name, UID: types.UID(name)},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main"}, {Name: "other"}}},
		}, nil
	})
}

func TestAnAnnotationForAContainerThatThePodDoesNotHaveIsRefused(t *testing.T) {
	s := newNetworkSite(t)
	away := false
	mirror := map[string]string{corev1.MirrorPodAnnotationKey: "static"}
	s.says(func(action k8stesting.Action) (bool, runtime.Object, error) {
		if away {
			return true, nil, errors.New("the server is away")
		}
		name := action.(k8stesting.GetAction).GetName()
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "first"}}, Containers: []corev1.Container{{Name: "main"}, {Name: "second"}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger"}}},
		}}
		switch name {
		case "recreated":
			pod.UID = "another"
		case "static":
			pod.UID, pod.Annotations = "mirror", mirror
		}
		return true, pod, nil
	})
	create := func(name, container, key, value string) error {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(s.config.Network.Sockets, name, "eth0"), 0o755); err != nil {
			t.Fatal(err)
		}
		pod, ctr := sensitivePod(name, "takt.dev/path", "preload", key, value)
		ctr.Id, ctr.Name = name+"-"+container, container
		_, err := s.createOf(pod, ctr)
		return err
	}
	for name, tc := range map[string]struct{ key, refused string }{
		"init": {"takt.dev/preload.first", ""}, "ordinary": {"takt.dev/preload.second", ""}, "ephemeral": {"takt.dev/preload.debugger", ""}, "static": {"takt.dev/preload.second", ""},
		"misspelt": {"takt.dev/preload.man", codeAnnotation + `: annotation "takt.dev/preload.man" is for a container that the pod does not have: write one of first, main, second, debugger`},
		"library":  {"takt.dev/library.man", codeAnnotation}, "recreated": {"takt.dev/preload.second", "another pod of its name"},
	} {
		value := "required"
		if name == "library" {
			value = "on"
		}
		if err := create(name, "main", tc.key, value); tc.refused == "" && err != nil || tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nothing is looked up for the container itself, nor a second time.
	away = true
	if err := create("itself", "main", "takt.dev/preload.main", "required"); err != nil {
		t.Errorf("for the container itself: %v", err)
	}
	if err := create("init", "main", "takt.dev/preload.first", "required"); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if err := create("unknown", "main", "takt.dev/preload.second", "required"); err == nil || !strings.Contains(err.Error(), "the server is away") {
		t.Errorf("without the API server: %v", err)
	}
	pod, _ := sensitivePod("init")
	if err := s.runtime.RemovePodSandbox(background, &adaptation.RemovePodSandboxRequest{Pod: pod}); err != nil {
		t.Fatal(err)
	}
	if _, known := s.agent.named.Load("init"); known {
		t.Error("a pod that has gone is remembered")
	}
}
