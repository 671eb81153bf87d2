// Command takt-cni is a CNI plugin that attaches pods to a network of Takt: see package cni.
package main

import "github.com/takt-dev/takt/kubernetes/internal/cni"

func main() {
	cni.Main("takt-cni attaches pods to a network of Takt: see docs/reference/cni.md")
}
