package cluster

import (
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// publishing sends a message every 20 ms to channel 7: which publisher it is, and the number of the message.
const publishing = `
import itertools, struct, time, takt
with takt.Session() as session, session.stream(reliable=True) as stream, stream.source(7) as source:
    print("publishing", flush=True)
    publisher = time.time_ns()
    for number in itertools.count():
        source.send(struct.pack("QQ", publisher, number))
        time.sleep(0.02)
`

// subscribed takes 50 messages of one publisher on channel 7, which are to be without a gap from the first on. Programs may
// run for a moment longer than their pods are there.
const subscribed = `
import os, struct, time, takt
with takt.Session() as session, session.stream() as stream, stream.sink(7) as sink:
    print("subscribed", flush=True)
    of, count = None, 0
    while count < 50:
        with sink.receive() as message:
            publisher, number = struct.unpack("QQ", message.data)
            if publisher != of:
                of, first, count, wrong = publisher, number, 0, 0
            wrong += number != first + count
            count += 1
    print("50 received,", wrong, "out of order, by user", os.getuid(), flush=True)
    time.sleep(1000000)
`

// linked is a pod whose program is linked with libtakt, of which it has the node's.
func linked(name, script string) *corev1.Pod {
	p := python(name, map[string]string{"takt.dev/time-sensitive": "true", "takt.dev/preload": "off", "takt.dev/library": "on"}, script)
	mount(p, "bindings", os.Getenv("TAKT_BINDINGS"), "/bindings")
	p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: "PYTHONPATH", Value: "/bindings"}, corev1.EnvVar{Name: "PYTHONDONTWRITEBYTECODE", Value: "1"})
	return p
}

func TestTwoNodesHaveChannelsThatFollowPods(t *testing.T) {
	of := taktObjects(t)
	served(t, of)
	hears := func(name, node string) {
		t.Helper()
		create(t, on(node, linked(name, subscribed)))
		if line := says(t, name, "received"); line != "50 received, 0 out of order, by user 65534" {
			t.Error(line)
		}
		remove(t, name, "")
	}
	create(t, on("node-1", linked("publisher", publishing)))
	says(t, "publisher", "publishing")
	hears("elsewhere", "node-2")
	hears("here", "node-1")
	// The publisher moves: who waits for it hears it from there.
	remove(t, "publisher", "")
	create(t, on("node-1", linked("patient", subscribed)))
	says(t, "patient", "subscribed")
	create(t, on("node-2", linked("moved", publishing)))
	if line := says(t, "patient", "received"); line != "50 received, 0 out of order, by user 65534" {
		t.Error(line)
	}
	hears("beside", "node-2")
	for _, name := range []string{"patient", "moved"} {
		remove(t, name, "")
	}
}
