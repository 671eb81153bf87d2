// Sends datagrams with launch times as programs in Go do: by system calls of its own, in the same form as talker.c.
//
//	talker CLOCK ADDRESS PORT COUNT PERIOD_US LEAD_US
package main

import (
	"encoding/binary"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

const soTxtime = 61

var clocks = map[string]uintptr{"tai": 11, "monotonic": 1}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func number(text string) int64 {
	value, err := strconv.ParseInt(text, 10, 64)
	check(err)
	return value
}

func now(clock uintptr) int64 {
	var now syscall.Timespec
	_, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&now)), 0)
	if errno != 0 {
		panic(errno)
	}
	return now.Nano()
}

func main() {
	clock := clocks[os.Args[1]]
	address := netip.MustParseAddr(os.Args[2])
	port, count := int(number(os.Args[3])), number(os.Args[4])
	period, lead := number(os.Args[5])*1000, number(os.Args[6])*1000

	family, to := syscall.AF_INET6, syscall.Sockaddr(&syscall.SockaddrInet6{Port: port, Addr: address.As16()})
	if address.Is4() {
		family, to = syscall.AF_INET, &syscall.SockaddrInet4{Port: port, Addr: address.As4()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM, 0)
	check(err)
	option := struct{ clock, flags uint32 }{clock: uint32(clock)}
	_, _, errno := syscall.Syscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), syscall.SOL_SOCKET, soTxtime,
		uintptr(unsafe.Pointer(&option)), unsafe.Sizeof(option), 0)
	if errno != 0 {
		panic(errno)
	}
	control := make([]byte, syscall.CmsgSpace(8))
	header := (*syscall.Cmsghdr)(unsafe.Pointer(&control[0]))
	header.Level, header.Type = syscall.SOL_SOCKET, soTxtime
	header.SetLen(syscall.CmsgLen(8))
	payload := make([]byte, 32)
	for at := int64(0); at < count; at++ {
		binary.NativeEndian.PutUint64(payload, uint64(now(clocks["tai"])+lead))
		binary.NativeEndian.PutUint32(payload[8:], uint32(at))
		binary.NativeEndian.PutUint64(control[syscall.CmsgLen(0):], uint64(now(clock)+lead))
		_, err := syscall.SendmsgN(fd, payload, control, to, 0)
		check(err)
		time.Sleep(time.Duration(period))
	}
}
