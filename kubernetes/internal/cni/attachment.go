package cni

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// SocketName is the pod's socket in its attachment's directory, which is named after the interface, in the pod's, which
// is named after its sandbox.
const SocketName = "takt.sock"

// networkName is the file beside it that names the CNI network, for GC.
const networkName = "network"

// deviceName is the file beside it that names the node's end of the interface, if it is a veth.
const deviceName = "device"

// identityName is the file beside it with the attachment's whole name, of which taktd may have a part. It is written last:
// what an ADD that was killed has left is without.
const identityName = "identity"

// uidName is the file beside it with the UID of the pod, if the container runtime tells it: names are used again.
const uidName = "uid"

// longestIdentity is what taktd takes.
const longestIdentity = 128

// An attachment is one interface of one pod. Its directory is the record of it: what has a directory is attached, and
// taktd brings back the listeners of those alone after a crash.
type attachment struct {
	root, container, ifname string
}

func (c *Config) attachment(container, ifname string) attachment {
	return attachment{root: c.Directory, container: container, ifname: ifname}
}

func (a attachment) directory() string { return filepath.Join(a.root, a.container, a.ifname) }
func (a attachment) socket() string    { return filepath.Join(a.directory(), SocketName) }

// lock keeps other commands for the same attachment waiting until unlock is called.
func (a attachment) lock() (unlock func(), err error) {
	locks := filepath.Join(a.root, ".locks")
	if err := os.MkdirAll(locks, 0o700); err != nil {
		return nil, failure("cannot make the directory of locks", err)
	}
	path := filepath.Join(locks, a.container+"."+a.ifname)
	for {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC, 0o600)
		if err != nil {
			return nil, failure("cannot make a lock", err)
		}
		for err = syscall.EINTR; errors.Is(err, syscall.EINTR); {
			err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX)
		}
		if err != nil {
			file.Close()
			return nil, failure("cannot lock "+path, err)
		}
		// Whoever had it may have removed the file: then it locks nothing any more.
		held, err1 := file.Stat()
		there, err2 := os.Stat(path)
		if err1 == nil && err2 == nil && os.SameFile(held, there) {
			return func() {
				os.Remove(path)
				file.Close()
			}, nil
		}
		file.Close()
	}
}

// create makes the attachment's directory, with the names of its network and of the node's device in it, and the pod's UID.
func (a attachment) create(network, uid, device string) error {
	if len(a.socket()) > longestSocket {
		return invalid("directory %q: the pod's socket would be %s, which is longer than %d bytes: choose a shorter directory", a.root, a.socket(), longestSocket)
	}
	// The directory of all pods is for root; a container sees its own, which is mounted into it.
	if err := os.MkdirAll(a.root, 0o700); err != nil {
		return failure("cannot make the directory of sockets", err)
	}
	if err := os.MkdirAll(a.directory(), 0o755); err != nil {
		return failure("cannot make the pod's directory", err)
	}
	if err := os.WriteFile(filepath.Join(a.directory(), networkName), []byte(network), 0o644); err != nil {
		return failure("cannot write the attachment's network", err)
	}
	for of, text := range map[string]string{uidName: uid, deviceName: device} {
		if text == "" {
			continue
		}
		if err := os.WriteFile(filepath.Join(a.directory(), of), []byte(text), 0o644); err != nil {
			return failure("cannot write the attachment's "+of, err)
		}
	}
	return nil
}

// finish notes the attachment's name when taktd has it.
func (a attachment) finish(name string) error {
	if err := os.WriteFile(filepath.Join(a.directory(), identityName), []byte(name), 0o644); err != nil {
		return failure("cannot write the attachment's name", err)
	}
	return nil
}

// complete says whether an ADD has been finished, and no DEL since.
func (a attachment) complete() bool {
	_, err := os.Lstat(filepath.Join(a.directory(), identityName))
	return err == nil
}

// remove takes the directory away, and the pod's if it is empty then.
func (a attachment) remove() error {
	if err := os.RemoveAll(a.directory()); err != nil {
		return failure("cannot remove the pod's directory", err)
	}
	return a.removePod()
}

// removePod takes the pod's directory away if it is empty.
func (a attachment) removePod() error {
	err := syscall.Rmdir(filepath.Dir(a.directory()))
	if err == nil || errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.ENOTDIR) {
		return nil
	}
	return failure("cannot remove the pod's directory", err)
}

// network is the CNI network that the attachment is of; empty if a crash has left it without.
func (a attachment) network() (string, error) {
	name, err := os.ReadFile(filepath.Join(a.directory(), networkName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", failure("cannot read the attachment's network", err)
	}
	return string(name), nil
}

// Device is the node's end of the interface that a directory of sockets is of; empty if it is no veth, or was attached
// by a plugin that did not say.
func Device(directory string) (string, error) {
	name, err := os.ReadFile(filepath.Join(directory, deviceName))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", failure("cannot read the attachment's device", err)
	}
	return string(name), nil
}

// attachments are all that are there.
func (c *Config) attachments() ([]attachment, error) {
	directories, err := filepath.Glob(filepath.Join(escape(c.Directory), "[^.]*", "*"))
	if err != nil {
		return nil, failure("cannot list attachments", err)
	}
	var found []attachment
	for _, directory := range directories {
		pod, ifname := filepath.Split(directory)
		found = append(found, c.attachment(filepath.Base(pod), ifname))
	}
	return found, nil
}

// escape makes a path a pattern that only it matches.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// Kept is an attachment as its directory has it.
type Kept struct {
	Directory string
	// Name is of its namespace, pod and interface; or of the container and the interface, where it is no pod's.
	Name string
	// UID is the pod's; empty where the container runtime does not tell it.
	UID string
}

// AllKept are the attachments below a directory of sockets that no DEL has removed.
func AllKept(sockets string) (all []Kept, err error) {
	found, err := (&Config{Directory: sockets}).attachments()
	for _, at := range found {
		network, failed := at.network()
		if failed != nil {
			return nil, failed
		}
		// Without a network it is what an ADD that was killed has left.
		if network == "" {
			continue
		}
		uid, failed := os.ReadFile(filepath.Join(at.directory(), uidName))
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			return nil, failure("cannot read the attachment's pod", failed)
		}
		all = append(all, Kept{Directory: at.directory(), Name: Whole(at.directory(), at.container+"/"+at.ifname), UID: string(uid)})
	}
	return all, err
}

// podArgs is what a container runtime says of the pod.
type podArgs struct{ namespace, name, uid string }

func podOf(args *skel.CmdArgs) podArgs {
	of := struct {
		types.CommonArgs
		K8S_POD_NAMESPACE, K8S_POD_NAME, K8S_POD_UID types.UnmarshallableString //nolint:revive // the names of CNI_ARGS
	}{}
	if types.LoadArgs("IgnoreUnknown=1;"+args.Args, &of) != nil {
		return podArgs{}
	}
	return podArgs{string(of.K8S_POD_NAMESPACE), string(of.K8S_POD_NAME), string(of.K8S_POD_UID)}
}

// name is that of an attachment: namespace, pod and interface, or container and interface of one that is no pod's.
func name(args *skel.CmdArgs) string {
	if pod := podOf(args); pod.name != "" {
		return pod.namespace + "/" + pod.name + "/" + args.IfName
	}
	return args.ContainerID + "/" + args.IfName
}

// identity names the pod in taktd's logs, tables and metrics.
func identity(args *skel.CmdArgs) string {
	name := name(args)
	if len(name) > longestIdentity {
		name = fmt.Sprintf("%s~%x", strings.ToValidUTF8(name[:longestIdentity-17], ""), sha256.Sum256([]byte(name)))[:longestIdentity]
	}
	return name
}

// Whole is the name of the attachment whose directory of sockets this is; its identity in taktd if a plugin has made it
// that did not note it.
func Whole(directory, identity string) string {
	if name, err := os.ReadFile(filepath.Join(directory, identityName)); err == nil {
		return string(name)
	}
	return identity
}

// Named are the namespace, the pod and the interface that a name or an identity tells of; of one that was shortened, or
// is of no pod, all of it is the pod's name.
func Named(identity string) (namespace, pod, ifName string) {
	parts := strings.Split(identity, "/")
	switch {
	case len(parts) == 3 && !strings.Contains(parts[2], "~"):
		return parts[0], parts[1], parts[2]
	case len(parts) == 2 && !strings.Contains(parts[1], "~"):
		return "", parts[0], parts[1]
	}
	return "", identity, ""
}

func failure(what string, err error) *types.Error {
	return types.NewError(types.ErrIOFailure, what+": "+err.Error(), "")
}
