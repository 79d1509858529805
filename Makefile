# `make` lists the targets.
.DEFAULT_GOAL := help
.PHONY: help setup build run run-nvmf run-orders test test-all test-rest soak judges hw-test bench lint doc book package release deb deb-test arm64 libraries install clean

# An RDMA device of this machine, in place of the software devices.
DEVICE ?=

# For make test: a text in the names of the tests to run; all of `make test` otherwise.
TEST ?=

# A second one, for make hw-test.
PEER ?=

# For make soak: a part of hw-tests/soak.d; all of them otherwise.
PART ?=

# For make judges: some of hw-tests/judges.d; all of them otherwise.
JUDGE ?=

# With any value, `make bench` takes seconds instead of minutes.
QUICK ?=

# With any value, `make bench` measures calls whose cache lines are cold.
COLD ?=

# For make bench: nvmf measures the storage daemon instead, orders the order gateway.
ONLY ?=

# Continuous integration does not change lock files.
locked := $(if $(CI),--locked)
run_tests := cargo run --quiet $(locked) -p doorbell-test-runner --

target_dir := $(or $(CARGO_TARGET_DIR),target)
echo := $(abspath $(target_dir))/release/doorbell-echo

# libdoorbell.so as it is installed and measured, with link-time optimisation.
dat_library := $(target_dir)/capi/libdoorbell.so
build_dat_library := cargo build $(locked) --profile capi -p doorbell-capi

# The folders of make install. DESTDIR is put in front of each.
prefix ?= /usr/local
libdir ?= $(prefix)/lib
includedir ?= $(prefix)/include
bindir ?= $(prefix)/bin
sbindir ?= $(prefix)/sbin
mandir ?= $(prefix)/share/man
datadir ?= $(prefix)/share

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

setup: ## install what is missing: Debian packages, the test machine's kernel
	@.ci/setup.sh

# Programs of DAT 1.2 on libdat2, and a libdat2 for distributions without one: C libraries.
dat12 = $(MAKE) -C provider/dat12 OUT="$(abspath $(target_dir))/dat12"
dat2 = $(MAKE) -C provider/dat2 OUT="$(abspath $(target_dir))/dat2"

# make install DAT2=1 installs that libdat2, DAT2=0 does not; otherwise it depends on whether the
# machine has one.
DAT2 ?= $(if $(wildcard $(foreach dir,/usr/lib /usr/lib64 /usr/lib/*-linux-gnu,$(dir)/libdat2.so.2)),0,1)

build: setup ## build everything, optimised
	cargo build $(locked) --release --workspace
	$(build_dat_library)
	$(dat12)
	$(dat2)

run: setup ## the echo server and client on the software mlx5 device (DEVICE=rxe: on rxe in the test machine; DEVICE=mlx5_0: on a device of this machine)
	cargo build $(locked) --release -p doorbell-hw-tests --bin doorbell-echo -p mlx5-emu $(if $(DEVICE),,-p doorbell-benches --bin compare)
ifeq ($(DEVICE),)
	hw-tests/with-emu '"$(echo)" pair --server-device mlx5_0 --client-device mlx5_0 --messages 5000'
	"$(target_dir)/release/compare" --own --quick
else ifeq ($(DEVICE),rxe)
	hw-tests/with-rxe '"$(echo)" pair --server-device rxeA --client-device rxeB'
else
	"$(echo)" pair --server-device $(DEVICE) --client-device $(DEVICE)
endif

run-nvmf: setup ## the storage daemon in the test machine: the kernel's initiator connects, makes a file system, and fio verifies
	cargo build $(locked) --release -p doorbell-nvmf
	hw-tests/nvmf/run

run-orders: setup ## the order gateway and 30 seconds of load on the software device: every answer verified, latencies as a table and a chart (DEVICE=mlx5_0: on a device of this machine)
	cargo build $(locked) --release -p doorbell-orders -p mlx5-emu --lib --bins
	DEVICE=$(DEVICE) hw-tests/orders

test: setup ## tests of every part, in ten minutes (TEST=r97: those of that name, on each device; DEVICE=mlx5_0: on a device of this machine)
	$(run_tests) $(if $(TEST),one '$(TEST)',short) $(DEVICE)

test-all: setup ## all tests, in half an hour (DEVICE=mlx5_0: on a device of this machine)
	@.ci/setup.sh judges
	$(run_tests) all $(DEVICE)

test-rest: setup ## what test-all runs beside the tests of test
	@.ci/setup.sh judges
	$(run_tests) rest $(DEVICE)

soak: setup ## the long forms of tests: minutes to hours (PART=fuzz: one of hw-tests/soak.d)
	hw-tests/soak $(PART)

judges: ## test suites and programs of other projects on the software mlx5 device (JUDGE=ucx: one of hw-tests/judges.d; LIBRARY=1: under doorbell-run)
	@.ci/setup.sh judges
	$(if $(LIBRARY),LIBRARY=1) hw-tests/judges $(JUDGE)

hw-test: setup ## everything on an mlx5 device of this machine, in one report (DEVICE=mlx5_0, PEER=mlx5_1: a second one that it reaches)
	$(build_dat_library)
	QUICK=$(QUICK) DAT_LIBRARY="$(dat_library)" hw-tests/hw-test $(DEVICE) $(PEER)

bench: setup ## direct path, provider, libmlx5 and libdaplofa compared on the software device (QUICK=1: in seconds; COLD=1: with cold cache lines; DEVICE=mlx5_0: on a device of this machine; ONLY=nvmf: the storage daemon, also beside the kernel's; ONLY=orders: the order gateway)
ifeq ($(ONLY),nvmf)
	QUICK=$(QUICK) hw-tests/nvmf/bench
else ifeq ($(ONLY),orders)
	QUICK=$(QUICK) hw-tests/orders-bench
else
	cargo build $(locked) --release -p mlx5-emu -p doorbell-benches -p doorbell-verbs
	$(build_dat_library)
ifneq ($(COLD),)
	"$(target_dir)/release/cold" --libdoorbell "$(dat_library)" $(if $(QUICK),--rounds 1 --millis 10) --out target/bench/cold.json
else
	"$(target_dir)/release/compare" --libdoorbell "$(dat_library)" $(if $(QUICK),--quick) $(if $(DEVICE),--device $(DEVICE)) --out target/bench/report.json
endif
endif

lint: setup ## format and clippy
	cargo fmt --all --check
	cargo clippy $(locked) --workspace --all-targets -- -D warnings
	cargo clippy $(locked) -p doorbell -p mlx5-direct --features doorbell/tokio,mlx5-direct/tokio -- -D warnings

doc: setup ## the documentation, in target/doc
	RUSTDOCFLAGS='-D warnings' cargo doc $(locked) --workspace --no-deps

book: ## the book, in target/book (installs mdBook in target/tools)
	[ -x "$(target_dir)/tools/bin/mdbook" ] || cargo install --quiet --locked --no-default-features --root "$(target_dir)/tools" --version 0.4.52 mdbook
	"$(target_dir)/tools/bin/mdbook" build book --dest-dir "$(abspath $(target_dir))/book"

arm64: ## cross-build for arm64; its machine code; models, device tests and tests of SRQs under qemu-user
	@.ci/setup.sh arm64
	hw-tests/arm64

package: setup ## the .crate files, in target/package; built and used by a crate outside the workspace
	hw-tests/consumer/run --packages

release: setup ## what a release has to pass before cargo publish; publishes nothing (UPDATE_API=1: writes the lists of the public API anew)
	@.ci/setup.sh distro
	UPDATE_API=$(UPDATE_API) hw-tests/release

deb: ## the Debian packages, in target/deb
	@.ci/setup.sh distro
	rm -rf "$(target_dir)/deb"
	mkdir -p "$(target_dir)/deb"
	DEB_DIR="$(abspath $(target_dir))/deb" CARGO_TARGET_DIR="$(abspath $(target_dir))" DEB_BUILD_OPTIONS=noautodbgsym fakeroot debian/rules clean binary

deb-test: deb ## the packages installed, used on the software device and purged in fresh chroots of Debian 12 and 13 (as root)
	hw-tests/packages

libraries: ## what make install installs, optimised
	cargo build $(locked) --release -p doorbell-utils -p doorbell-verbs -p doorbell-nvmf -p doorbell-orders -p mlx5-direct-c --lib --bins
	$(build_dat_library)
	$(dat12)
	$(dat2)

# The PATH of sudo often has no cargo. Then what `make libraries` built is installed.
install: ## the provider for libdat2, its tools, doorbell-run with its library, doorbell-nvmf, doorbell-orders, mlx5-direct for C, example lines for dat.conf, the man pages; DAT 1.2; libdat2 where there is none (prefix=, DESTDIR=, DAT2=1: in any case)
	if command -v cargo >/dev/null; then \
		cargo build $(locked) --release -p doorbell-utils -p doorbell-verbs -p doorbell-nvmf -p doorbell-orders -p mlx5-direct-c --lib --bins && $(build_dat_library); \
	elif [ ! -e "$(dat_library)" ]; then \
		echo 'make install: no cargo on the PATH of this user, and nothing built: run make libraries first' >&2; exit 1; \
	fi
	install -d "$(DESTDIR)$(libdir)" "$(DESTDIR)$(bindir)" "$(DESTDIR)$(mandir)/man1" "$(DESTDIR)$(mandir)/man7" "$(DESTDIR)$(datadir)/doorbell"
	install -m 755 "$(dat_library)" "$(DESTDIR)$(libdir)/libdoorbell.so.2"
	ln -sf libdoorbell.so.2 "$(DESTDIR)$(libdir)/libdoorbell.so"
	install -m 755 "$(target_dir)/release/doorbell-datconf" "$(target_dir)/release/doorbell-info" "$(DESTDIR)$(bindir)"
	install -m 644 provider/utils/doorbell-datconf.1 provider/utils/doorbell-info.1 "$(DESTDIR)$(mandir)/man1"
	install -m 644 provider/dist/doorbell.7 provider/dist/doorbell-srq.7 "$(DESTDIR)$(mandir)/man7"
	install -m 755 "$(target_dir)/release/libdoorbell_verbs.so" "$(DESTDIR)$(libdir)/libdoorbell-verbs.so"
	install -m 755 "$(target_dir)/release/doorbell-run" "$(DESTDIR)$(bindir)"
	install -m 644 mlx5-direct/verbs/doorbell-run.1 "$(DESTDIR)$(mandir)/man1"
	install -d "$(DESTDIR)$(sbindir)" "$(DESTDIR)$(mandir)/man8" "$(DESTDIR)$(datadir)/doorbell-nvmf"
	install -m 755 "$(target_dir)/release/doorbell-nvmf" "$(DESTDIR)$(sbindir)"
	install -m 644 provider/daemons/nvmf/dist/doorbell-nvmf.8 "$(DESTDIR)$(mandir)/man8"
	install -m 644 provider/daemons/nvmf/dist/nvmf.toml provider/daemons/nvmf/dist/doorbell-nvmf.service "$(DESTDIR)$(datadir)/doorbell-nvmf"
	install -d "$(DESTDIR)$(datadir)/doorbell-orders"
	install -m 755 "$(target_dir)/release/doorbell-orders" "$(DESTDIR)$(sbindir)"
	install -m 644 provider/daemons/orders/dist/doorbell-orders.8 "$(DESTDIR)$(mandir)/man8"
	install -m 644 provider/daemons/orders/dist/orders.toml provider/daemons/orders/dist/doorbell-orders.service "$(DESTDIR)$(datadir)/doorbell-orders"
	install -d "$(DESTDIR)$(includedir)/doorbell" "$(DESTDIR)$(libdir)/pkgconfig"
	install -m 755 "$(target_dir)/release/libmlx5_direct_c.so" "$(DESTDIR)$(libdir)/libmlx5-direct.so"
	install -m 644 mlx5-direct/c/include/doorbell/direct.h "$(DESTDIR)$(includedir)/doorbell"
	sed -e 's|@libdir@|$(libdir)|' -e 's|@includedir@|$(includedir)|' mlx5-direct/c/mlx5-direct.pc.in >"$(DESTDIR)$(libdir)/pkgconfig/mlx5-direct.pc"
	sed 's|@LIBRARY@|$(libdir)/libdoorbell.so.2|' provider/dist/dat.conf >"$(DESTDIR)$(datadir)/doorbell/dat.conf"
	$(dat12) install DESTDIR="$(DESTDIR)" prefix="$(prefix)" libdir="$(libdir)" includedir="$(includedir)"
ifeq ($(DAT2),1)
	$(dat2) install DESTDIR="$(DESTDIR)" prefix="$(prefix)" libdir="$(libdir)" includedir="$(includedir)"
endif

clean: ## remove what was built (the test machine's kernel stays)
	cargo clean
