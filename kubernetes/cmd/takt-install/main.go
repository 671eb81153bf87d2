// Command takt-install puts what the image of taktd has for the node there: takt-install [-missing] FROM TO. The image has no shell.
// With -missing nothing is done where all of it is there, of whatever version.
package main

import (
	"fmt"
	"os"

	"github.com/takt-dev/takt/kubernetes/internal/install"
)

func main() {
	args := os.Args[1:]
	missing := len(args) > 0 && args[0] == "-missing"
	if missing {
		args = args[1:]
	}
	if len(args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: takt-install [-missing] FROM TO")
		os.Exit(2)
	}
	needed, err := true, error(nil)
	if missing {
		needed, err = install.Lacks(args[0], args[1])
	}
	if err == nil && needed {
		err = install.Directory(args[0], args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "takt-install:", err)
		os.Exit(1)
	}
}
