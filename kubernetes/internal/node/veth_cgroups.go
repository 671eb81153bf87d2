package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/takt-dev/takt/kubernetes/internal/enforce"
)

// vethGroup is the cgroup, below the root of a hierarchy, of programs that go on without the agent, each in one of its own by the
// name of its record.
const vethGroup = "takt-veth"

// vethBounds are what such a program may use, by the files of both versions of cgroups: nobody else bounds it.
var vethBounds = map[string]string{"memory.max": "64M", "memory.limit_in_bytes": "64M", "pids.max": "32"}

// vethRoom is where such a program is to be: outside of the agent's cgroups, with which it would be charged and would end.
type vethRoom struct {
	// unified is its cgroup of version 2; nil if there is none. tasks are what threads are moved by in hierarchies of version 1.
	unified *os.File
	tasks   []*os.File
}

// makeVethRoom makes its cgroups. What could be made is there also with an error.
func makeVethRoom(key string) (room vethRoom, err error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return room, fmt.Errorf("cannot see the agent's own cgroups: %w", err)
	}
	var mistakes []error
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, ":")
		names, _, _ := strings.Cut(rest, ":")
		if names == "" {
			unified, err := unifiedVethRoom(key)
			if !errors.Is(err, fs.ErrNotExist) {
				mistakes = append(mistakes, err)
			}
			room.unified = unified
			continue
		}
		directory := filepath.Join("/sys/fs/cgroup", strings.TrimPrefix(names, "name="))
		if controllers := strings.Split(names, ","); slices.Contains(controllers, "memory") || slices.Contains(controllers, "pids") {
			directory = filepath.Join(directory, vethGroup, key)
			mistakes = append(mistakes, makeGroup(directory))
		}
		tasks, err := os.OpenFile(filepath.Join(directory, "tasks"), os.O_WRONLY, 0)
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("cannot leave the agent's cgroup of %s: %w", names, err))
			continue
		}
		room.tasks = append(room.tasks, tasks)
	}
	return room, errors.Join(mistakes...)
}

func unifiedVethRoom(key string) (*os.File, error) {
	root, err := enforce.Unified("/")
	if err != nil {
		return nil, err
	}
	parent := filepath.Join(root, vethGroup)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	var enable []string
	has, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	for _, controller := range strings.Fields(string(has)) {
		if controller == "memory" || controller == "pids" {
			enable = append(enable, "+"+controller)
		}
	}
	if err == nil && len(enable) > 0 {
		err = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte(strings.Join(enable, " ")), 0)
	}
	group := filepath.Join(parent, key)
	if err := errors.Join(err, makeGroup(group)); err != nil {
		// Without a bound, but still its own.
		opened, _ := os.Open(group)
		return opened, err
	}
	return os.Open(group)
}

// makeGroup makes a cgroup with the bounds that its hierarchy has.
func makeGroup(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	var mistakes []error
	for name, bound := range vethBounds {
		file := filepath.Join(path, name)
		if _, err := os.Stat(file); err == nil {
			mistakes = append(mistakes, os.WriteFile(file, []byte(bound), 0))
		}
	}
	return errors.Join(mistakes...)
}

// enter has this thread, and so what it starts with these attributes, be there. The thread is to start nothing else.
func (r vethRoom) enter(with *syscall.SysProcAttr) error {
	if r.unified != nil {
		with.UseCgroupFD, with.CgroupFD = true, int(r.unified.Fd())
	}
	var mistakes []error
	for _, tasks := range r.tasks {
		if _, err := tasks.WriteString("0"); err != nil {
			mistakes = append(mistakes, fmt.Errorf("cannot leave the agent's cgroup: %w", err))
		}
	}
	return errors.Join(mistakes...)
}

func (r vethRoom) close() {
	if r.unified != nil {
		r.unified.Close()
	}
	for _, tasks := range r.tasks {
		tasks.Close()
	}
}

// podCgroup is a pod's directory in the unified hierarchy of the host that is seen at root, as the host names it; empty if it has none
// there: the pod is in hierarchies of version 1.
func podCgroup(root, parent string) string {
	unified, err := enforce.Unified(root)
	if err != nil || parent == "" {
		return ""
	}
	path := filepath.Join(unified, parent)
	if _, err := os.Stat(filepath.Join(path, "cgroup.procs")); err != nil {
		return ""
	}
	return filepath.Join("/", strings.TrimPrefix(path, filepath.Clean(root)))
}

// vethGroups are the cgroups of all such programs, one in each hierarchy that has one.
func vethGroups(root string) []string {
	base := filepath.Join(root, "sys/fs/cgroup")
	own, _ := filepath.Glob(filepath.Join(base, vethGroup)) // the patterns are well-formed
	others, _ := filepath.Glob(filepath.Join(base, "*", vethGroup))
	return append(own, others...)
}

// groupsIn are the cgroups in one, by name.
func groupsIn(path string) (names []string) {
	entries, _ := os.ReadDir(path) // one that has gone has none
	for _, entry := range entries {
		if entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}

func removeGroup(path string) error {
	if err := unix.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot remove the cgroup %s: end what runs there: %w", path, err)
	}
	return nil
}
