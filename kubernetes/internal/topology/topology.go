// Package topology reads where a node's CPUs are: core, package, NUMA node, the other threads of the core,
// the last-level cache (Documentation/ABI/stable/sysfs-devices-system-cpu). It decides nothing.
package topology

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// CPU is one logical CPU. Absent knowledge is -1, as for the NUMA node of a kernel without NUMA.
type CPU struct {
	// ID is the kernel's number.
	ID int
	// Core is the number of the physical core inside its package.
	Core int
	// Package is the number of the socket.
	Package int
	// NUMANode is the memory that is near.
	NUMANode int
	// Siblings are the other CPUs that are threads of the same core, ascending.
	Siblings []int
	// L3 is the number of the last-level cache.
	L3 int
}

// Read returns the CPUs that are online, ascending. root is "/" but in tests.
func Read(root string) ([]CPU, error) {
	base := filepath.Join(root, "sys/devices/system/cpu")
	online, err := readList(filepath.Join(base, "online"))
	if err != nil {
		return nil, err
	}
	if len(online) == 0 {
		return nil, fmt.Errorf("%s/online lists no CPU", base)
	}
	nodes, err := readNodes(filepath.Join(root, "sys/devices/system/node"))
	if err != nil {
		return nil, err
	}
	cpus := make([]CPU, 0, len(online))
	for _, id := range online {
		cpu, err := readCPU(filepath.Join(base, "cpu"+strconv.Itoa(id)), id)
		if err != nil {
			return nil, err
		}
		if node, ok := nodes[id]; ok {
			cpu.NUMANode = node
		}
		cpus = append(cpus, cpu)
	}
	return cpus, nil
}

func readCPU(dir string, id int) (CPU, error) {
	cpu := CPU{ID: id, NUMANode: -1, L3: -1}
	var err error
	if cpu.Core, err = readNumber(filepath.Join(dir, "topology/core_id")); err != nil {
		return CPU{}, err
	}
	if cpu.Package, err = readNumber(filepath.Join(dir, "topology/physical_package_id")); err != nil {
		return CPU{}, err
	}
	threads, err := readList(filepath.Join(dir, "topology/thread_siblings_list"))
	if err != nil {
		return CPU{}, err
	}
	cpu.Siblings = slices.DeleteFunc(threads, func(thread int) bool { return thread == id })
	cpu.L3, err = readNumber(filepath.Join(dir, "cache/index3/id"))
	if errors.Is(err, fs.ErrNotExist) {
		cpu.L3, err = -1, nil
	}
	return cpu, err
}

// readNodes maps CPUs to NUMA nodes; empty without NUMA.
func readNodes(dir string) (map[int]int, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read NUMA nodes: %w", err)
	}
	nodes := map[int]int{}
	for _, entry := range entries {
		text, ok := strings.CutPrefix(entry.Name(), "node")
		if !ok {
			continue
		}
		node, err := strconv.Atoi(text)
		if err != nil {
			continue
		}
		cpus, err := readList(filepath.Join(dir, entry.Name(), "cpulist"))
		if err != nil {
			return nil, err
		}
		for _, cpu := range cpus {
			nodes[cpu] = node
		}
	}
	return nodes, nil
}

func readList(path string) ([]int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read CPU topology: %w", err)
	}
	cpus, err := ParseCPUList(string(text))
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return cpus, nil
}

func readNumber(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("cannot read CPU topology: %w", err)
	}
	number, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("cannot read %s: %q is not a number", path, text)
	}
	return number, nil
}
