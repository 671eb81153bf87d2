// Command guest is what runs in the cluster's pods: guest pause|idle|busy|probe|leave|ask|pin|change|talk.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
	"unsafe"

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
	case "leave": // ends its first thread when it is told, and goes on
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGUSR1)
		go func() { <-end; os.Exit(0) }()
		<-told
		unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
	case "ask": // asks for its first thread, and says what it has got
		go func() { <-end; os.Exit(0) }()
		fmt.Println(ask())
		for {
			time.Sleep(time.Hour)
		}
	case "pin": // another thread pins itself before it has the name that is reserved for
		go func() {
			runtime.LockOSThread()
			var one unix.CPUSet
			one.Set(0)
			if err := unix.SchedSetaffinity(0, &one); err != nil {
				fmt.Println(err)
			}
			if err := os.WriteFile("/proc/thread-self/comm", []byte("pinned"), 0); err != nil {
				fmt.Println(err)
			}
			for {
				time.Sleep(time.Hour)
			}
		}()
		<-end
	case "talk": // sends datagrams at launch times, as static programs do: nothing stands in front of their system calls
		go func() { <-end; os.Exit(0) }()
		if err := talk(os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("sent by user", os.Getuid())
		for {
			time.Sleep(time.Hour)
		}
	case "change": // tries to leave its class, and calls itself what the kernel says
		said := "changed"
		// Without CAP_SYS_NICE, reset-on-fork has to stay, and the nice value cannot become less.
		nice := int32(0)
		if priority, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err == nil {
			nice = int32(20 - priority)
		}
		if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_NORMAL, Flags: unix.SCHED_FLAG_RESET_ON_FORK, Nice: nice}, 0); err != nil {
			said = err.Error()
		}
		if err := os.WriteFile("/proc/thread-self/comm", []byte(said), 0); err != nil {
			fmt.Println(err)
		}
		<-end
	default:
		go func() { <-end; os.Exit(0) }()
		for {
			time.Sleep(time.Hour)
		}
	}
}

// talk sends 20 datagrams to port 5001, with their launch times by CLOCK_TAI in them. The sockets' are by CLOCK_MONOTONIC: the kernel asks for CAP_NET_ADMIN for others.
func talk(address string) error {
	to := net.ParseIP(address).To4()
	if to == nil {
		return fmt.Errorf("%q is no address", address)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	// struct sock_txtime: the clock, and no flags.
	clock := binary.NativeEndian.AppendUint64(nil, unix.CLOCK_MONOTONIC)
	if err := unix.SetsockoptString(socket, unix.SOL_SOCKET, unix.SO_TXTIME, string(clock)); err != nil {
		return fmt.Errorf("SO_TXTIME: %w", err)
	}
	var tai, monotonic unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_TAI, &tai), unix.ClockGettime(unix.CLOCK_MONOTONIC, &monotonic)); err != nil {
		return err
	}
	control := make([]byte, unix.CmsgSpace(8))
	header := (*unix.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = unix.SOL_SOCKET, unix.SCM_TXTIME
	header.SetLen(unix.CmsgLen(8))
	for number := range int64(20) {
		after := int64(time.Second) + number*int64(5*time.Millisecond)
		binary.NativeEndian.PutUint64(control[unix.CmsgLen(0):], uint64(monotonic.Nano()+after))
		launch := binary.NativeEndian.AppendUint64(nil, uint64(tai.Nano()+after))
		if err := unix.Sendmsg(socket, launch, control, &unix.SockaddrInet4{Port: 5001, Addr: [4]byte(to)}, 0); err != nil {
			return err
		}
	}
	return nil
}

// ask has a reservation given to this thread.
func ask() string {
	agent, err := net.Dial("unix", os.Getenv("TAKT_RESERVATION_SOCKET"))
	if err != nil {
		return err.Error()
	}
	defer agent.Close()
	fmt.Fprintf(agent, "reserve %d\n", unix.Gettid())
	answer, err := bufio.NewReader(agent).ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return answer
}
