// Command render writes what Helm makes of the chart takt-node, for those who have no Helm at hand:
// render CHART VALUES.yaml NAMESPACE.
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
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: render CHART VALUES.yaml NAMESPACE")
		os.Exit(2)
	}
	if err := render(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func render(dir, file, namespace string) error {
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
	values, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: "takt-node", Namespace: namespace, IsInstall: true}, capabilities)
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
