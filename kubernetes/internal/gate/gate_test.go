package gate

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const state = `{"ociVersion":"1.2.0","id":"c1","status":"created","pid":7,"bundle":"/b","annotations":{"a":"b"}}`

// agent answers one question with this text and says what it was asked.
func agent(t *testing.T, answer string) (socket string, asked chan string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	asked = make(chan string, 1)
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		line, _ := bufio.NewReader(conn).ReadString('\n')
		asked <- line
		fmt.Fprint(conn, answer)
	}()
	return socket, asked
}

func TestTheGateOpensOnlyWhenTheAgentSaysSo(t *testing.T) {
	for answer, want := range map[string]string{
		"{}\n":                       "",
		`{"error":"no room"}` + "\n": "no room",
		"":                           "gave no answer",
		"yes\n":                      "gave no answer",
		`{"error":` + "\n":           "gave no answer",
	} {
		socket, asked := agent(t, answer)
		err := Pass(strings.NewReader(state), socket)
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("after %q the gate says %v", answer, err)
		}
		if got := <-asked; got != `{"id":"c1","pid":7}`+"\n" {
			t.Errorf("asked %q", got)
		}
	}
}

func TestTheGateIsClosedWithoutAnAgentOrAState(t *testing.T) {
	nobody := filepath.Join(t.TempDir(), "s")
	if err := Pass(strings.NewReader(state), nobody); err == nil || !strings.Contains(err.Error(), "takt-node does not answer") {
		t.Errorf("without an agent: %v", err)
	}
	for _, text := range []string{"", "[]", "{}", `{"id":"c1"}`, `{"pid":7}`, `{"id":"c1","pid":-7}`} {
		if err := Pass(strings.NewReader(text), nobody); err == nil || !strings.Contains(err.Error(), "state") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTheAgentIsToldTheContainersSeccompPolicy(t *testing.T) {
	for config, want := range map[string]string{
		`{"linux":{"seccomp":{"defaultAction":"SCMP_ACT_ALLOW"}}}`: `{"id":"c1","pid":7,"seccomp":{"defaultAction":"SCMP_ACT_ALLOW"}}`,
		`{"linux":{}}`: `{"id":"c1","pid":7}`,
		`{"linux":`:    `{"id":"c1","pid":7}`,
		`[]`:           `{"id":"c1","pid":7}`,
	} {
		bundle := t.TempDir()
		if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		socket, asked := agent(t, "{}\n")
		if err := Pass(strings.NewReader(fmt.Sprintf(`{"id":"c1","pid":7,"bundle":%q,"seccomp":{"forged":1}}`, bundle)), socket); err != nil {
			t.Error(err)
		}
		if got := <-asked; got != want+"\n" {
			t.Errorf("asked %q", got)
		}
	}
}
