// Command render writes what Helm makes of the chart takt-node, for those who have no Helm at hand:
// render CHART VALUES.yaml NAMESPACE [RELEASE].
package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

func main() {
	release := "takt-node"
	switch len(os.Args) {
	case 4:
	case 5:
		release = os.Args[4]
	default:
		fmt.Fprintln(os.Stderr, "usage: render CHART VALUES.yaml NAMESPACE [RELEASE]")
		os.Exit(2)
	}
	if err := render(os.Args[1], os.Args[2], os.Args[3], release); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func render(dir, file, namespace, release string) error {
	chart, err := loader.Load(dir)
	if err != nil {
		return err
	}
	given, err := chartutil.ReadValuesFile(file)
	if err != nil {
		return err
	}
	capabilities := chartutil.DefaultCapabilities.Copy()
	capabilities.KubeVersion = chartutil.KubeVersion{Version: "v1.36.0", Major: "1", Minor: "36"}
	values, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}, capabilities)
	if err != nil {
		return err
	}
	files, err := engine.Render(chart, values)
	if err != nil {
		return err
	}
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Printf("---\n%s\n", files[name])
	}
	return nil
}
