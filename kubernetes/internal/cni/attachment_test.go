package cni

import (
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
)

func TestALongNamedPodIsKnownByItsWholeName(t *testing.T) {
	pod := strings.Repeat("p", 120)
	args := &skel.CmdArgs{ContainerID: "0123", IfName: "net1", Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=plant;K8S_POD_NAME=" + pod + ";K8S_POD_UID=1-2"}
	identity := identity(args)
	if len(identity) != longestIdentity {
		t.Errorf("taktd is told %d bytes: %s", len(identity), identity)
	}
	c := &Config{Directory: t.TempDir()}
	at := c.attachment(args.ContainerID, args.IfName)
	// An attachment of a plugin that did not note its name has what taktd has.
	if namespace, name, _ := Named(Whole(at.directory(), identity)); namespace != "" || name != identity {
		t.Errorf("without a note it is %q %q", namespace, name)
	}
	if err := at.create("tsn", podOf(args).uid, ""); err != nil {
		t.Fatal(err)
	}
	if err := at.finish(name(args)); err != nil {
		t.Fatal(err)
	}
	if namespace, found, link := Named(Whole(at.directory(), identity)); namespace != "plant" || found != pod || link != "net1" {
		t.Errorf("it is %q %q %q", namespace, found, link)
	}
	// What an ADD that was killed has left is no attachment.
	if err := os.MkdirAll(c.attachment("4567", "net1").directory(), 0o755); err != nil {
		t.Fatal(err)
	}
	all, err := AllKept(c.Directory)
	if want := (Kept{at.directory(), "plant/" + pod + "/net1", "1-2"}); err != nil || len(all) != 1 || all[0] != want {
		t.Errorf("kept are %v, %v", all, err)
	}
}
