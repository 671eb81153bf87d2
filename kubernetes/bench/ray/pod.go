package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	reservation "github.com/takt-dev/takt/kubernetes/api/v1alpha1"
	"github.com/takt-dev/takt/kubernetes/internal/enforce"
)

// cgroups are where the kubelet would put pods: a group for all, below it one for each.
type cgroups struct {
	root string
	// v2 says which files there are; account is where cgroup v1 counts CPU time.
	v2      bool
	account string
}

// groupName is that of the group for all.
const groupName = "takt-ray"

func openCgroups() (cgroups, error) {
	const base = "/sys/fs/cgroup"
	for _, c := range []cgroups{
		{root: base, v2: true}, {root: base + "/cpu,cpuacct", account: base + "/cpu,cpuacct"}, {root: base + "/cpu", account: base + "/cpuacct"},
	} {
		file := "cpu.shares"
		if c.v2 {
			file = "cgroup.controllers"
		}
		if _, err := os.Stat(filepath.Join(c.root, file)); err != nil {
			continue
		}
		if c.v2 {
			for _, dir := range []string{c.root, filepath.Join(c.root, groupName)} {
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return cgroups{}, err
				}
				if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+cpu"), 0o644); err != nil {
					return cgroups{}, fmt.Errorf("cannot use the CPU controller in %s: %w", dir, err)
				}
			}
		}
		for _, dir := range c.dirs("") {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return cgroups{}, err
			}
		}
		// All pods together weigh as much as the machine has cores, as the kubelet's kubepods does.
		return c, c.requests("", 1000*runtime.NumCPU())
	}
	return cgroups{}, errors.New("no CPU controller in /sys/fs/cgroup: mount it there")
}

// dirs are those of a group, in every hierarchy that is used.
func (c cgroups) dirs(group string) []string {
	dirs := []string{filepath.Join(c.root, groupName, group)}
	if c.account != "" && c.account != c.root {
		dirs = append(dirs, filepath.Join(c.account, groupName, group))
	}
	return dirs
}

func (c cgroups) write(group, file, text string) error {
	return os.WriteFile(filepath.Join(c.root, groupName, group, file), []byte(text), 0o644)
}

// requests is what the kubelet writes for a request of so many thousandths of a core.
func (c cgroups) requests(group string, milli int) error {
	shares := max(2, milli*1024/1000)
	if c.v2 {
		return c.write(group, "cpu.weight", strconv.Itoa(1+(shares-2)*9999/262142))
	}
	return c.write(group, "cpu.shares", strconv.Itoa(shares))
}

// limits is what the kubelet writes for a limit, none for 0.
func (c cgroups) limits(group string, milli int) error {
	const period = 100_000
	quota := milli * period / 1000
	if c.v2 {
		text := "max"
		if milli > 0 {
			text = strconv.Itoa(quota)
		}
		return c.write(group, "cpu.max", text+" "+strconv.Itoa(period))
	}
	if milli == 0 {
		quota = -1
	}
	return errors.Join(c.write(group, "cpu.cfs_period_us", strconv.Itoa(period)), c.write(group, "cpu.cfs_quota_us", strconv.Itoa(quota)))
}

// used is the CPU time of a group so far.
func (c cgroups) used(group string) (time.Duration, error) {
	if !c.v2 {
		text, err := os.ReadFile(filepath.Join(c.account, groupName, group, "cpuacct.usage"))
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return time.Duration(ns), err
	}
	text, err := os.ReadFile(filepath.Join(c.root, groupName, group, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "usage_usec "); ok {
			us, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return time.Duration(us) * time.Microsecond, err
		}
	}
	return 0, fmt.Errorf("cpu.stat of pod %s has no usage_usec", group)
}

// pod is a first process, all that descends from it, and their group.
type pod struct {
	name string
	c    cgroups
	cmd  *exec.Cmd
	// milli is what its container has as request, as limit, or as reservation, by what is compared.
	milli int
}

// start prepares a process in the group of a pod, and the log of what it says.
func (c cgroups) start(name, logName string, milli int, env []string, command ...string) (*pod, error) {
	join := ""
	for _, dir := range c.dirs(name) {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("cannot make a group for pod %s: %w", name, err)
		}
		join += "echo $$ >" + dir + "/cgroup.procs && "
	}
	cmd := exec.Command("/bin/sh", append([]string{"-c", join + `exec "$@"`, "sh"}, command...)...)
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// It stays open: this program is short-lived.
	log, err := os.Create(logName + ".log")
	if err != nil {
		return nil, err
	}
	cmd.Stderr = log
	p := &pod{name: name, c: c, cmd: cmd, milli: milli}
	return p, c.requests(name, milli)
}

// run starts the process with its output in the log.
func (p *pod) run() error {
	p.cmd.Stdout = p.cmd.Stderr
	return p.cmd.Start()
}

// reserve is what takt-node does for a container with a claim, by the same code: the reservation is enforced
// before reserve returns, and looked after until release.
func (p *pod) reserve(backend enforce.Backend, thread string, period time.Duration) (release func() (int, error), err error) {
	parameters := reservation.Parameters{
		APIVersion: reservation.APIVersion, Kind: reservation.Kind,
		Runtime: reservation.Duration(period.Nanoseconds() * int64(p.milli) / 1000), Period: reservation.Duration(period),
		Threads: reservation.Threads{Select: reservation.SelectName, Name: thread},
	}
	if err := parameters.Validate(reservation.DefaultLimits, 1); err != nil {
		return nil, err
	}
	grant := enforce.Grant{Key: "bench/" + p.name, Parameters: parameters, Cores: []int{0}}
	if err := backend.Accepts([]enforce.Grant{grant}); err != nil {
		return nil, err
	}
	enforcement, err := backend.Enforce(enforce.Container{ID: p.name, Init: p.cmd.Process.Pid, Root: "/"}, []enforce.Grant{grant})
	if err != nil {
		return nil, fmt.Errorf("pod %s: %w", p.name, err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	held := 0
	go func() {
		for {
			states, err := enforcement.Refresh()
			if err != nil {
				done <- err
				return
			}
			held = len(states[0].Threads)
			select {
			case <-stop:
				done <- nil
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	return func() (int, error) {
		close(stop)
		err := <-done
		return held, errors.Join(err, enforcement.Release())
	}, nil
}

// remove ends all that is in the groups and removes them. Processes leave their groups a moment after their
// end.
func (c cgroups) remove() (err error) {
	for range 100 {
		err = nil
		for _, root := range c.dirs("") {
			var groups []string
			_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, walkErr error) error {
				if walkErr == nil && entry.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
			for _, group := range slices.Backward(groups) {
				text, _ := os.ReadFile(filepath.Join(group, "cgroup.procs"))
				for field := range strings.FieldsSeq(string(text)) {
					if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
						_ = syscall.Kill(pid, syscall.SIGKILL)
					}
				}
				err = errors.Join(err, os.Remove(group))
			}
		}
		if err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return fmt.Errorf("cannot remove the groups: %w", err)
}
