package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/takt-dev/takt/kubernetes/internal/apitest"
	"github.com/takt-dev/takt/kubernetes/internal/report"
)

const viewer = "system:serviceaccount:takt:takt-node-view"

// reviewing has an API server say of tokens whose they are: "viewer", "other" and "elsewhere", which is of another audience.
func reviewing(client *fake.Clientset) (reviews *int) {
	reviews = new(int)
	client.PrependReactor("create", "tokenreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		*reviews++
		review := action.(clienttesting.CreateAction).GetObject().(*authentication.TokenReview)
		if !slices.Equal(review.Spec.Audiences, []string{report.Audience}) {
			return true, nil, fmt.Errorf("audiences %q", review.Spec.Audiences)
		}
		is := &review.Status
		switch review.Spec.Token {
		case "viewer":
			is.Authenticated, is.Audiences, is.User.Username = true, []string{report.Audience}, viewer
		case "other":
			is.Authenticated, is.Audiences, is.User.Username = true, []string{report.Audience}, "system:serviceaccount:default:default"
		case "elsewhere":
			// An API server that knows no audiences names none.
			is.Authenticated, is.User.Username = true, viewer
		}
		return true, review, nil
	})
	return reviews
}

func TestWhatTheAgentSaysOfPodsIsForItsViewerAlone(t *testing.T) {
	client := fake.NewClientset()
	reviews := reviewing(client)
	agent := &Node{client: client, name: nodeName, config: Config{Viewer: viewer}}
	agent.viewers = newViewers(agent)
	ask := func(token string) *httptest.ResponseRecorder {
		request, answer := httptest.NewRequestWithContext(context.Background(), http.MethodGet, report.Path, nil), httptest.NewRecorder()
		if token != "" {
			request.Header.Set(report.TokenHeader, token)
		}
		agent.serveReport(answer, request)
		return answer
	}
	for token, want := range map[string]int{"": http.StatusUnauthorized, "nobody": http.StatusForbidden, "other": http.StatusForbidden, "elsewhere": http.StatusForbidden} {
		if answer := ask(token); answer.Code != want || strings.Contains(answer.Body.String(), nodeName) {
			t.Errorf("token %q: %d, %s", token, answer.Code, answer.Body)
		}
	}
	if *reviews != 3 {
		t.Errorf("%d tokens are looked at", *reviews)
	}
	for range 3 {
		answer := ask("viewer")
		var told report.Node
		if err := json.Unmarshal(answer.Body.Bytes(), &told); answer.Code != http.StatusOK || err != nil || told.Node != nodeName {
			t.Errorf("%d, %v: %s", answer.Code, err, answer.Body)
		}
	}
	if *reviews != 4 {
		t.Errorf("%d tokens are looked at, a good one again and again", *reviews)
	}
	// Whoever shows tokens without end costs the API server no more than a few, and the viewer nothing.
	refused := 0
	for at := range 1000 {
		if ask(fmt.Sprint("made-up-", at)).Code == http.StatusTooManyRequests {
			refused++
		}
	}
	if refused == 0 || ask("viewer").Code != http.StatusOK {
		t.Errorf("%d of a thousand are refused unseen", refused)
	}
	agent.config.Viewer = ""
	if answer := ask("viewer"); answer.Code != http.StatusForbidden || !strings.Contains(answer.Body.String(), "write viewer") {
		t.Errorf("without a viewer: %d, %s", answer.Code, answer.Body)
	}
}

func TestWhoShowsBadTokensKeepsNobodyElseFromTheAgent(t *testing.T) {
	client := fake.NewClientset()
	reviews := reviewing(client)
	agent := &Node{client: client, name: nodeName, config: Config{Viewer: viewer}}
	agent.viewers = newViewers(agent)
	ask := func(from, token string) int {
		request, answer := httptest.NewRequest(http.MethodGet, report.Path, nil), httptest.NewRecorder()
		request.RemoteAddr = from
		request.Header.Set(report.TokenHeader, token)
		agent.serveReport(answer, request)
		return answer.Code
	}
	for at := range 2 * reviewsAtOnce {
		ask(fmt.Sprintf("10.0.0.9:%d", 1000+at), fmt.Sprint("made-up-", at))
	}
	if code := ask("10.0.0.1:1000", "viewer"); code != http.StatusOK {
		t.Errorf("the viewer is answered %d", code)
	}
	// Nor do many together cost the API server, or the agent, very much.
	for at := range 4 * mostAskers {
		ask(fmt.Sprintf("[fd00::%x]:1000", at), "made-up")
	}
	if most := mostAskers; len(agent.viewers.askers) > most || *reviews > most {
		t.Errorf("%d addresses are remembered, %d tokens looked at", len(agent.viewers.askers), *reviews)
	}
}

// The same with a real API server's tokens.
func TestANodeTellsOfPodsByATokenOfTheAPIServer(t *testing.T) {
	client, err := kubernetes.NewForConfig(apitest.Start(t, "../../../deploy/helm/takt-node/crds"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"takt-node-view", "other"} {
		if _, err := client.CoreV1().ServiceAccounts("default").Create(background, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	agent := &Node{client: client, name: nodeName, config: Config{Viewer: "system:serviceaccount:default:takt-node-view"}}
	agent.viewers = newViewers(agent)
	for _, tc := range []struct {
		account   string
		audiences []string
		want      int
	}{
		{"takt-node-view", []string{report.Audience}, http.StatusOK},
		{"takt-node-view", nil, http.StatusForbidden},
		{"other", []string{report.Audience}, http.StatusForbidden},
	} {
		made, err := client.CoreV1().ServiceAccounts("default").CreateToken(background, tc.account, &authentication.TokenRequest{Spec: authentication.TokenRequestSpec{Audiences: tc.audiences}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		request, answer := httptest.NewRequest(http.MethodGet, report.Path, nil), httptest.NewRecorder()
		request.Header.Set(report.TokenHeader, made.Status.Token)
		if agent.serveReport(answer, request); answer.Code != tc.want {
			t.Errorf("%+v: %d, %s", tc, answer.Code, answer.Body)
		}
	}
}
