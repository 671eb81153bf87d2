# What a newcomer needs: `make demo` and `make test`. Both install what is missing (Debian, Ubuntu):
# `setup-build` what building and running needs, `setup` what the tests need besides.

CARGO ?= cargo
FUZZ_SECONDS ?= 5
# Hosts made of network namespaces and AF_XDP need root.
SUDO := $(if $(filter 0,$(shell id -u)),,sudo --preserve-env=PATH,HOME,CARGO_HOME,RUSTUP_HOME,RUSTUP_TOOLCHAIN,PROPTEST_RNG_SEED)

.PHONY: help demo demo-emulated test setup setup-build build datapaths test-datapaths lint-datapaths lint-overhead site sessions static lint unit docs docs-run docs-links installation e2e adversary kill-test simulate-peering loom fuzz kubernetes test-oracle test-guests test-cluster test-cluster-machine test-cluster-crio cluster-up cluster-down bench bench-technologies bench-kubernetes install uninstall deb wheel clean

help:
	@echo "make demo     an isochronous talker with Takt beside bare metal and Flannel: a table and a report"
	@echo "make demo-emulated  the same beside the kernel's own etf and taprio, with a distribution's kernel in an emulated machine in virtual time"
	@echo "make test     these:"
	@echo "  lint        formatting and lints"
	@echo "  unit        tests of single packages, and e2e"
	@echo "  docs        the examples in the documentation of the API"
	@echo "  installation  make install, the Debian packages and the wheel, in a fresh Debian 12"
	@echo "  docs-run    README and the how-to pages, literally, in a fresh Debian 12; no dead links"
	@echo "  e2e         whole nodes on hosts made of network namespaces: crashes, links, tenants, volume"
	@echo "  loom        the ring, doorbell and memory protocols, over every interleaving"
	@echo "  fuzz        everything that reads bytes from outside; FUZZ_SECONDS=600 make fuzz: longer"
	@echo "  kubernetes  the Go part"
	@echo "  test-datapaths  the datapaths over DPDK and libfabric"
	@echo "make adversary     a hostile tenant and a forging host beside others at work, SECONDS=3600 long"
	@echo "make kill-test     SIGKILL, SIGSTOP and SIGCONT of applications and daemons at random, COUNT=1000 times in each test"
	@echo "make simulate-peering  what 5,000 runtimes with 100,000 channels say to each other, in virtual time (RUNTIMES=5000)"
	@echo "make test-oracle   the scheduler beside the kernel's own taprio and etf, in an emulated machine"
	@echo "make test-guests   virtual machines with a distribution's kernel behind takt guest, emulated"
	@echo "make test-cluster  takt-node in a real Kubernetes of one node, and of two (builds it the first time: a quarter of an hour)"
	@echo "make test-cluster-machine  the same of one node in an emulated machine as nodes are: systemd, cgroup v2, a distribution's kernel (half an hour); test-cluster-crio: with CRI-O"
	@echo "make cluster-up    such a Kubernetes to play with, until make cluster-down; NETWORK=1: with time-sensitive pods; NODES=2: of two nodes"
	@echo "make datapaths      the datapaths that need libraries of their own ($(DATAPATHS)), into target/datapaths/release"
	@echo "make test-datapaths them, linted and tested; and the benchmark over each beside the bare technology"
	@echo "make lint-overhead  lints of the benchmark of what Takt takes over DPDK"
	@echo "make build    release binaries and libraries into target/release"
	@echo "make bench    all benchmarks beside all peers (builds zenoh, ZeroMQ, iceoryx2: slow)"
	@echo "make bench-technologies  one benchmark written for UDP sockets, AF_XDP, DPDK, libfabric and Takt: figures, lines of code"
	@echo "make bench-kubernetes  what CPU reservations cost in a cluster, a Ray job with and without, an isochronous talker in pods (half an hour)"
	@echo "make install  after make build: PREFIX=/usr/local; \`make uninstall\` takes it away again"
	@echo "make site     the documentation with search, into out/site; no dead links"
	@echo "make sessions  terminal sessions of the documentation, recorded again"
	@echo "make static   a takt that needs no library (linked against musl), into out/static; tried in an empty root"
	@echo "make wheel    the Python binding with its libraries, into dist"
	@echo "make deb      Debian packages into out/deb: takt, libtakt0, libtakt-dev, takt-preload"

setup:
	@scripts/setup.sh test

setup-build:
	@scripts/setup.sh build

build: setup-build
	$(CARGO) build --release --workspace
	scripts/preload.sh

demo: setup-build
	$(CARGO) build --release -p takt-cli -p takt-preload
	$(SUDO) target/release/takt demo

# KERNEL, SHIFT, OPTIONS: see scripts/demo-emulated.sh. No root is needed once its packages are there.
demo-emulated: setup-build
	$(CARGO) build --release -p takt-cli -p takt-preload
	scripts/demo-emulated.sh out/demo-emulated

# The compiler of rust-toolchain.toml, fetched where rustup may not do that by itself; not for what builds nothing.
ifneq ($(filter-out help docs-links site cluster-down install uninstall clean,$(MAKECMDGOALS)),)
ifndef RUSTUP_TOOLCHAIN
export RUSTUP_TOOLCHAIN := $(shell scripts/toolchain.sh)
endif
endif

# The same inputs each time, as a change is judged; `make unit` and `make fuzz` alone try others.
test: export FUZZ_SEED ?= 1
# Built sooner; for seconds of each it is no loss that they run slower.
test: export FUZZ_OPT_LEVEL ?= 1
test: export PROPTEST_RNG_SEED ?= 1
# Nothing is built a second time.
test: export CARGO_INCREMENTAL ?= 0
# Meanwhile the later stages' programs are built.
test: AHEAD = scripts/ahead.sh $$PPID &
test: lint unit docs docs-run loom fuzz kubernetes test-datapaths

.PHONY: ahead
ahead:
	-fuzz/run.sh build
	-$(MAKE) -C kubernetes tests

# Until what is built ahead is there, if something is.
awaited = mkdir -p target && flock target/ahead true

# Datapaths over libraries that not everybody has: workspaces of their own, of which nothing else knows.
DATAPATHS := dpdk fabric
each_datapath = set -e; for name in $(DATAPATHS); do (cd crates/plugin/datapath-$$name && export CARGO_TARGET_DIR=$(CURDIR)/target/datapaths && $(1)); done

datapaths:
	@scripts/setup.sh datapaths
	$(call each_datapath,$(CARGO) build --release)

lint-datapaths:
	@scripts/setup.sh datapaths
	$(call each_datapath,$(CARGO) fmt --all --check && $(CARGO) clippy --all-targets -- -D warnings)

# A benchmark that stands on the whole runtime, which takes as long to build as all else of the datapaths: not in the gate.
lint-overhead: setup
	@scripts/setup.sh datapaths
	cd crates/plugin/datapath-dpdk && CARGO_TARGET_DIR=$(CURDIR)/target/overhead $(CARGO) clippy -p takt-datapath-dpdk-overhead -- -D warnings

test-datapaths: setup lint-datapaths
	$(CARGO) build --workspace
	$(call each_datapath,$(CARGO) build --quiet)
	$(SUDO) tests/technologies/run.py --rounds 1 --count 500
	$(call each_datapath,$(SUDO) env CARGO_TARGET_DIR=$$CARGO_TARGET_DIR $(CARGO) test)

# Figures beside the bare technologies, and lines of code: ROUNDS=9 COUNT=20000.
bench-technologies: ROUNDS ?= 9
bench-technologies: COUNT ?= 20000
bench-technologies: datapaths
	$(CARGO) build --release -p taktd -p takt-capi
	$(SUDO) tests/technologies/run.py --build target/release --rounds $(ROUNDS) --count $(COUNT)

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings

# With the datapaths that tests load, so that none of them builds while others measure time.
unit: setup
	$(CARGO) build --workspace
	$(call each_datapath,$(CARGO) build --quiet)
	$(CARGO) test --release -p takt-recovery --lib --tests
	$(AHEAD)
	$(SUDO) $(CARGO) test --workspace --lib --bins --tests

docs: setup
	$(CARGO) test --workspace --doc

# Does what README and the how-to pages say, in a fresh Debian 12 with the packages; `installation` makes that.
docs-run: installation
	$(SUDO) env BUILD=target/debug tests/docs/run.py

docs-links:
	@tests/docs/run.py --links

# The sessions of docs/sessions.md, as they go in that fresh system.
sessions: installation
	$(SUDO) env BUILD=target/debug tests/docs/run.py --record

# MkDocs (BSD) with what it needs, from PyPI, in a place of its own.
MKDOCS := target/tools/mkdocs
$(MKDOCS)/bin/mkdocs:
	python3 -m venv $(MKDOCS)
	$(MKDOCS)/bin/pip --quiet install mkdocs==1.6.1

site: $(MKDOCS)/bin/mkdocs
	@$(MKDOCS)/bin/python scripts/site.py target/site out/site

# Linked against musl, which is inside: no library is looked for.
static:
	@scripts/static.sh

# What `unit` has built, installed into staging directories, and packed and installed in a fresh Debian 12.
installation: setup
	$(CARGO) build --workspace
	$(SUDO) env BUILD=target/debug tests/install/run.sh

e2e: setup
	$(call each_datapath,$(CARGO) build --quiet)
	$(SUDO) $(CARGO) test --workspace --test end_to_end

adversary: SECONDS ?= 60
adversary: setup
	$(SUDO) env TAKT_ADVERSARY_SECONDS=$(SECONDS) $(CARGO) test -p takt-tests --test end_to_end adversary:: -- --nocapture

kill-test: COUNT ?= 1000
kill-test: setup
	$(SUDO) env TAKT_KILLS=$(COUNT) $(CARGO) test -p takt-tests --test end_to_end kills:: -- --nocapture --test-threads 1

simulate-peering: RUNTIMES ?= 5000
simulate-peering: setup
	env TAKT_SIMULATE_RUNTIMES=$(RUNTIMES) $(CARGO) test -p takt-runtime --test peering_scale -- --nocapture

loom: setup
	RUSTFLAGS="--cfg loom" $(CARGO) test -p takt -p takt-shm -p takt-datapath --release --lib --target-dir target/loom loom

fuzz: setup
	@$(awaited)
	fuzz/run.sh $(FUZZ_SECONDS)

kubernetes: setup
	$(SUDO) $(MAKE) -C kubernetes test

test-oracle: setup
	tests/oracle/run.sh
	$(CARGO) build --release -p takt-cli -p taktd
	tests/oracle/others.sh

test-guests: setup
	$(CARGO) build -p takt-cli -p taktd
	tests/guests/image.sh target/guests
	$(SUDO) env TAKT_GUEST_IMAGE=$(CURDIR)/target/guests $(CARGO) test -p takt-ingress --test programs qemu:: -- --ignored --test-threads 1

# What the pods of a cluster are given.
for_pods = $(CARGO) build -p taktd -p takt-preload -p takt-cli -p takt-capi -p takt-embedded && PROFILE=dev BUILD=target/debug scripts/preload.sh
test-cluster test-cluster-machine test-cluster-crio: setup
	$(for_pods)
	$(SUDO) $(MAKE) -C kubernetes $@

# Go is all that these need beforehand, and with NETWORK=1 the node's runtime.
cluster-up cluster-down:
	$(if $(NETWORK),$(for_pods))
	$(SUDO) $(MAKE) -C kubernetes $@

bench:
	@scripts/setup.sh bench
	$(CARGO) build --release -p takt-cli
	cd bench-peers && $(CARGO) build --release
	java -jar /usr/share/java/ivy.jar -error -dependency io.aeron aeron-all 1.47.4 -types jar -retrieve "bench-peers/target/[artifact].[ext]"
	for name in latency throughput topics local sinks; do \
		$(SUDO) env AERON_JAR=$(CURDIR)/bench-peers/target/aeron-all.jar target/release/takt bench $$name --peers bench-peers/target/release/takt-bench-peers || exit 1; \
	done

bench-kubernetes: setup
	$(for_pods)
	$(SUDO) $(MAKE) -C kubernetes bench-cluster bench-allocation bench-ray bench-isochronous

# PREFIX, DESTDIR, SYSCONFDIR, BINDIR, LIBDIR, INCLUDEDIR, UNITDIR, MANDIR: see scripts/install.sh. Neither builds nor fetches:
# root need not have a cargo.
export PREFIX DESTDIR SYSCONFDIR BINDIR LIBDIR INCLUDEDIR UNITDIR MANDIR BUILD
install:
	@scripts/install.sh install

uninstall:
	@scripts/install.sh uninstall

deb: build
	@scripts/deb.sh

clean:
	$(CARGO) clean
	rm -rf out bench-peers/target fuzz/target

# With libtakt.so and libtakt_embedded.so inside; needs nothing but Python.
wheel: setup-build
	$(CARGO) build --release -p takt-capi -p takt-embedded
	python3 bindings/python/backend.py dist
