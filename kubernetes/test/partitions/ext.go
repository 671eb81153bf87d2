package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// The members of struct sched_ext_ops that matter here, and what they are if only threads that ask for SCHED_EXT are the scheduler's.
const switchPartial = 1 << 3

// ext begins a sched_ext scheduler that leaves all to the kernel's defaults.
func ext(flags uint64) (end func(), err error) {
	const nameBytes = 128
	value := make([]byte, 8+nameBytes)
	value[0] = byte(flags)
	copy(value[8:], "takt_test")
	spec := &ebpf.CollectionSpec{Programs: map[string]*ebpf.ProgramSpec{}, Maps: map[string]*ebpf.MapSpec{"ops": {
		Name: "ops", Type: ebpf.StructOpsMap, Flags: unix.BPF_F_LINK, Key: &btf.Int{Size: 4}, KeySize: 4, MaxEntries: 1,
		Value: &btf.Struct{Name: "sched_ext_ops", Size: uint32(len(value)), Members: []btf.Member{
			{Name: "flags", Type: &btf.Int{Name: "u64", Size: 8}},
			{Name: "name", Type: &btf.Array{Index: &btf.Int{Size: 4}, Type: &btf.Int{Name: "char", Size: 1}, Nelems: nameBytes}, Offset: 64},
		}},
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: value}},
	}}}
	all, err := ebpf.NewCollection(spec)
	if err != nil {
		return nil, err
	}
	attached, err := link.AttachStructOps(link.StructOpsOptions{Map: all.Maps["ops"]})
	if err != nil {
		all.Close()
		return nil, err
	}
	return func() { attached.Close(); all.Close() }, nil
}

// servers compares what the kernel admits while a sched_ext scheduler runs.
func servers() {
	if _, err := os.Stat("/sys/kernel/sched_ext"); err != nil {
		return
	}
	for _, how := range []struct {
		name  string
		flags uint64
	}{{"for all threads", 0}, {"for those that ask for it", switchPartial}} {
		end, err := ext(how.flags)
		say("12. a sched_ext scheduler "+how.name, err)
		if err != nil {
			continue
		}
		state, _ := os.ReadFile("/sys/kernel/sched_ext/state")
		fmt.Printf("experiment:    sched_ext is %s\n", strings.TrimSpace(string(state)))
		admits()
		end()
	}
	fmt.Println("experiment:    without it again")
	admits()
}
