// Command takt-install puts what the image of taktd has for the node there: takt-install FROM TO. The image has no shell.
package main

import (
	"fmt"
	"os"

	"github.com/takt-dev/takt/kubernetes/internal/install"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: takt-install FROM TO")
		os.Exit(2)
	}
	if err := install.Directory(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "takt-install:", err)
		os.Exit(1)
	}
}
