// Command guest is what runs in the cluster's pods: guest pause|idle|busy.
package main

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The container's first thread is the one that works.
func init() { runtime.LockOSThread() }

func main() {
	mode := "idle"
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	switch mode {
	case "busy":
		go func() { <-end; os.Exit(0) }()
		for {
		}
	case "probe": // as an exec probe: says whether it has a reservation
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil || attr.Policy == unix.SCHED_DEADLINE {
			os.Exit(1)
		}
	default:
		go func() { <-end; os.Exit(0) }()
		for {
			time.Sleep(time.Hour)
		}
	}
}
