package report

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/takt-dev/takt/kubernetes/internal/apitest"
)

// The token passes a real API server, which makes it, and is good for the agent alone.
func TestAnAgentIsShownATokenThroughTheAPIServer(t *testing.T) {
	config := apitest.Start(t, "../../../deploy/helm/takt-node/crds")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	shown := ""
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = r.Header.Get(TokenHeader)
		if err := json.NewEncoder(w).Encode(Node{Node: "one"}); err != nil || r.URL.Path != Path {
			t.Errorf("%v, %s", err, r.URL.Path)
		}
	}))
	// The API server passes nothing on to itself.
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(addresses, func(one net.Addr) bool {
		address, is := one.(*net.IPNet)
		return is && address.IP.To4() != nil && address.IP.IsGlobalUnicast()
	})
	if at < 0 {
		t.Skip("this machine has no address but its own")
	}
	address := addresses[at].(*net.IPNet).IP.String()
	if server.Listener, err = net.Listen("tcp", net.JoinHostPort(address, "0")); err != nil {
		t.Fatal(err)
	}
	server.Start()
	defer server.Close()
	ctx := context.Background()
	for _, name := range []string{"takt-node", "takt-node-view"} {
		if _, err := client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod, err := client.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "takt-node-x"},
		Spec: corev1.PodSpec{ServiceAccountName: "takt-node", Containers: []corev1.Container{{
			Name: "takt-node", Image: "takt-node", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: int32(server.Listener.Addr().(*net.TCPAddr).Port)}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	if pod, err = client.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	told, err := Ask(client)(ctx, pod)
	if err != nil || told.Node != "one" {
		t.Fatalf("%+v, %v", told, err)
	}
	for audience, good := range map[string]bool{Audience: true, "": false} {
		var audiences []string
		if audience != "" {
			audiences = []string{audience}
		}
		review, err := client.AuthenticationV1().TokenReviews().Create(ctx, &authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: shown, Audiences: audiences}}, metav1.CreateOptions{})
		if err != nil || review.Status.Authenticated != good || good && review.Status.User.Username != "system:serviceaccount:default:takt-node-view" {
			t.Errorf("for %q: %v, %+v", audience, err, review.Status)
		}
	}
}
