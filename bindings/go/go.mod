module github.com/takt-dev/takt/bindings/go

go 1.22
