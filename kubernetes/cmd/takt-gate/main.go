// Command takt-gate is the OCI hook of package gate. Its argument is the agent's socket.
package main

import (
	"fmt"
	"os"

	"github.com/takt-dev/takt/kubernetes/internal/gate"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: takt-gate SOCKET < OCI-STATE")
		os.Exit(2)
	}
	if err := gate.Pass(os.Stdin, os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "takt-gate:", err)
		os.Exit(1)
	}
}
