module github.com/takt-dev/takt/kubernetes

go 1.26.0

require (
	pgregory.net/rapid v1.3.0
	sigs.k8s.io/json v0.0.0-20250730193827-2d320260d730
)
