// Package apitest runs a real API server for tests: etcd and kube-apiserver as `make test-api` has built them, or with the
// rest of Kubernetes test/cluster/build.sh.
// Nothing of a cluster is behind it: no kubelet, no scheduler, no controllers.
package apitest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// Start starts an API server that ends with the test, with the chart's custom resources. Without the programs, the test
// is skipped.
func Start(t testing.TB, crds string) *rest.Config {
	t.Helper()
	bin := programs()
	_, err := os.Stat(filepath.Join(bin, "etcd"))
	server := []string{filepath.Join(bin, "kube-apiserver")}
	if _, absent := os.Stat(server[0]); absent != nil {
		server = []string{filepath.Join(bin, "kube"), "apiserver"}
		_, absent = os.Stat(server[0])
		err = cmp.Or(err, absent)
	}
	if err != nil {
		if os.Getenv("TAKT_API_REQUIRED") != "" {
			t.Fatalf("there is no API server: %v", err)
		}
		skipped(t)
		t.Skipf("there is no API server, `make -C kubernetes test-api` builds one: %v", err)
	}
	dir := t.TempDir()
	ports := freePorts(t, 3)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(dir, "service.key")
	write(t, keyFile, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	write(t, filepath.Join(dir, "tokens.csv"), []byte("admin-token,admin,admin,system:masters\n"))
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	run(t, filepath.Join(bin, "etcd"), "--data-dir", filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", fmt.Sprintf("http://127.0.0.1:%d", ports[1]))
	run(t, server[0], append(server[1:], "--etcd-servers", etcd, "--secure-port", fmt.Sprint(ports[2]),
		"--bind-address", "127.0.0.1", "--cert-dir", filepath.Join(dir, "certs"), "--service-cluster-ip-range", "10.96.0.0/24",
		"--token-auth-file", filepath.Join(dir, "tokens.csv"), "--authorization-mode", "RBAC",
		"--disable-admission-plugins", "ServiceAccount", "--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", keyFile, "--service-account-signing-key-file", keyFile)...)
	config := &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), BearerToken: "admin-token", QPS: 500, Burst: 500,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	Until(t, "the API server is ready", func() bool {
		_, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background())
		return err == nil
	})
	define(t, config, crds)
	return config
}

// Kubeconfig is a file by which programs reach it.
func Kubeconfig(t testing.TB, config *rest.Config) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{"test": {Server: config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{"admin": {Token: config.BearerToken}},
		Contexts:  map[string]*clientcmdapi.Context{"test": {Cluster: "test", AuthInfo: "admin"}}, CurrentContext: "test",
	}, path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// skipped adds the test to the file that says at the end of `make test` what was not run.
func skipped(t testing.TB) {
	name := os.Getenv("TAKT_API_SKIPPED")
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = fmt.Fprintln(file, t.Name())
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// define adds the custom resources of a directory and waits until the API server serves them.
func define(t testing.TB, config *rest.Config, dir string) {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no custom resources in %s: %v", dir, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		definition := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(text, &definition.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if _, err := definitions.Create(context.Background(), definition, metav1.CreateOptions{FieldValidation: "Strict"}); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		Until(t, definition.GetName()+" is served", func() bool {
			found, err := definitions.Get(context.Background(), definition.GetName(), metav1.GetOptions{})
			if err != nil {
				return false
			}
			conditions, _, _ := unstructured.NestedSlice(found.Object, "status", "conditions")
			for _, condition := range conditions {
				if of, ok := condition.(map[string]any); ok && of["type"] == "Established" && of["status"] == "True" {
					return true
				}
			}
			return false
		})
	}
}

// Until waits for what must come; the limit is for a machine that is busy with other things.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("still not: %s", what)
		}
	}
}

// programs is where test/cluster/build.sh puts them.
func programs() string {
	cache := os.Getenv("TAKT_CLUSTER_CACHE")
	if cache == "" {
		user, _ := os.UserCacheDir()
		cache = filepath.Join(user, "takt-cluster")
	}
	return filepath.Join(cache, "bin")
}

func write(t testing.TB, path string, text []byte) {
	t.Helper()
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// freePorts are ports of which nobody listens on any at the moment, below those that the kernel gives away by itself.
func freePorts(t testing.TB, count int) (ports []int) {
	t.Helper()
	for port := 20000 + os.Getpid()%500*20; len(ports) < count; port++ {
		if port > 32000 {
			t.Fatal("no port is free")
		}
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer listener.Close()
		ports = append(ports, port)
	}
	return ports
}

// run starts a program that is killed with the test, whose last words are told if the test has failed.
func run(t testing.TB, program string, args ...string) {
	t.Helper()
	command := exec.Command(program, args...)
	said := &bytes.Buffer{}
	command.Stdout, command.Stderr = said, said
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		if t.Failed() {
			lines := strings.Split(said.String(), "\n")
			t.Logf("%s: %s", program, strings.Join(lines[max(0, len(lines)-10):], "\n"))
		}
	})
}
