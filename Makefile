# What a newcomer needs: `make demo` and `make test`. Both install what is missing (Debian, Ubuntu).

CARGO ?= cargo
FUZZ_SECONDS ?= 5
# Hosts made of network namespaces and AF_XDP need root.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=PATH,HOME,CARGO_HOME,RUSTUP_HOME)

.PHONY: help demo test setup build lint unit docs e2e loom fuzz kubernetes test-oracle test-cluster bench bench-kubernetes install clean

help:
	@echo "make demo     an isochronous talker over Takt's overlay beside bare metal and Flannel's way: tables and report"
	@echo "make test     everything below"
	@echo "  lint        formatting and lints"
	@echo "  unit        tests of single packages, and e2e"
	@echo "  docs        the examples in the documentation of the API"
	@echo "  e2e         whole nodes on hosts made of network namespaces: crashes, links, tenants, volume"
	@echo "  loom        the ring and doorbell protocols, over every interleaving"
	@echo "  fuzz        everything that reads bytes from outside; FUZZ_SECONDS=600 make fuzz: longer"
	@echo "  kubernetes  the Go part"
	@echo "make test-oracle   the scheduler beside the kernel's own taprio and etf, in an emulated machine"
	@echo "make test-cluster  takt-node in a real Kubernetes of one node (builds it the first time: a quarter of an hour)"
	@echo "make build    release binaries and libraries into target/release"
	@echo "make bench    all benchmarks beside all peers (builds zenoh, ZeroMQ, iceoryx2: slow)"
	@echo "make bench-kubernetes  what CPU reservations cost in a cluster, and a Ray job with and without (a quarter of an hour)"
	@echo "make install  PREFIX=/usr/local: binaries, libraries, headers, unit file"

setup:
	@scripts/setup.sh

build: setup
	$(CARGO) build --release --workspace

demo: setup
	$(CARGO) build --release -p takt-cli -p takt-preload
	$(SUDO) target/release/takt demo

test: lint unit docs loom fuzz kubernetes

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

unit: setup
	$(CARGO) build --workspace
	$(SUDO) $(CARGO) test --workspace --lib --bins --tests

docs: setup
	$(CARGO) test --workspace --doc

e2e: setup
	$(SUDO) $(CARGO) test --workspace --test end_to_end

loom: setup
	RUSTFLAGS="--cfg loom" $(CARGO) test -p takt-shm -p takt-datapath --release --lib --target-dir target/loom loom

fuzz: setup
	fuzz/run.sh $(FUZZ_SECONDS)

kubernetes: setup
	$(SUDO) $(MAKE) -C kubernetes test

test-oracle: setup
	tests/oracle/run.sh

test-cluster: setup
	$(SUDO) $(MAKE) -C kubernetes test-cluster

bench:
	@scripts/setup.sh bench
	$(CARGO) build --release -p takt-cli
	cd bench-peers && $(CARGO) build --release
	for name in latency throughput local sinks; do \
		$(SUDO) target/release/takt bench $$name --peers bench-peers/target/release/takt-bench-peers || exit 1; \
	done

bench-kubernetes: setup
	$(SUDO) $(MAKE) -C kubernetes bench-cluster bench-allocation bench-ray

PREFIX ?= /usr/local
install: build
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin target/release/takt target/release/taktd
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include include/takt.h include/insane.h
	install -D -m 755 target/release/libtakt.so $(DESTDIR)$(PREFIX)/lib/libtakt.so.0
	ln -sf libtakt.so.0 $(DESTDIR)$(PREFIX)/lib/libtakt.so
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/lib target/release/libtakt_embedded.so target/release/libtakt_preload.so
	install -D -m 644 deploy/systemd/taktd.service $(DESTDIR)/lib/systemd/system/taktd.service
	install -D -m 644 deploy/takt.toml $(DESTDIR)/etc/takt/takt.toml

clean:
	$(CARGO) clean
	rm -rf out bench-peers/target fuzz/target
