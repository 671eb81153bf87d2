package topology

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
)

// RootDomain returns the online CPUs that the kernel balances threads over, ascending: without those that
// isolcpus= keeps apart, nor those that partitions of cgroup v2 have taken from the root cgroup. Cpusets of cgroup v1
// that were made exclusive are not seen here; to threads that do not span the rest, the kernel refuses SCHED_DEADLINE.
func RootDomain(root string) ([]int, error) {
	base := filepath.Join(root, "sys/devices/system/cpu")
	domain, err := readList(filepath.Join(base, "online"))
	if err != nil {
		return nil, err
	}
	isolated, err := readList(filepath.Join(base, "isolated"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	domain = slices.DeleteFunc(domain, func(cpu int) bool { return slices.Contains(isolated, cpu) })
	for _, unified := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
		left, err := readList(filepath.Join(root, unified, "cpuset.cpus.effective"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		domain = slices.DeleteFunc(domain, func(cpu int) bool { return !slices.Contains(left, cpu) })
	}
	return domain, nil
}
