package objects

import (
	"time"

	"golang.org/x/sys/unix"
)

// CommitMargin is how long before its instant a node takes a schedule back that has not been committed, so that nothing begins
// which not all nodes have. A node looks every two seconds.
const CommitMargin = 4 * time.Second

// TAI is CLOCK_TAI, which schedules go by: nanoseconds since 1970. Without an offset in the kernel it is UTC.
func TAI() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_TAI, &now); err != nil {
		return time.Now().UnixNano()
	}
	return now.Nano()
}
