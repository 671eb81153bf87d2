package topology

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
)

// RootDomain returns the online CPUs that the kernel balances threads over, ascending: without those that
// isolcpus= keeps apart. Cpusets that were made exclusive since are not seen here; to threads that do not span
// the rest, the kernel refuses SCHED_DEADLINE.
func RootDomain(root string) ([]int, error) {
	base := filepath.Join(root, "sys/devices/system/cpu")
	online, err := readList(filepath.Join(base, "online"))
	if err != nil {
		return nil, err
	}
	isolated, err := readList(filepath.Join(base, "isolated"))
	if errors.Is(err, fs.ErrNotExist) {
		return online, nil
	}
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(online, func(cpu int) bool { return slices.Contains(isolated, cpu) }), nil
}
