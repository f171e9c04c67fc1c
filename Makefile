# What a person runs, and CI runs the same: make demo, make test, make check, make bench.
#
# Build output goes to one folder outside the tree, so that it outlives the checkout: dependencies are compiled once. The demo
# and the tests share one Cargo profile for the same reason.

SHELL := /bin/bash
export CARGO_TARGET_DIR ?= $(HOME)/.cache/muster/target

# What muster-chaos is told: names of experiments, --rounds N, --seconds N, --short, --minutes N.
CHAOS ?=
# What muster-fuzz is told: list, or a target and --seconds N, --seed N.
FUZZ ?= list

.PHONY: help demo test attack login-check chaos fuzz check bench setup build release

help:
	@echo 'make demo    three voters, two shards, 64 simulated nodes, real processes, real kills; ends by itself'
	@echo 'make test    every test, with one closing line'
	@echo 'make attack  attempts to get past isolation, roles and certificates, each of which must fail; root tries all of them'
	@echo 'make login-check  muster login with an OpenID provider from npm (needs Node.js); installs the provider first'
	@echo 'make chaos   the real command under kills, power loss, bad links, clocks and disks; needs root, says what it skips'
	@echo 'make fuzz    one parser under new inputs: make fuzz FUZZ="selector --seconds 60"; without FUZZ it names all'
	@echo 'make check   format, lints, layers, tidiness'
	@echo 'make bench   measurements of this machine'
	@echo 'make build   the muster command, at $(CARGO_TARGET_DIR)/debug/muster'
	@echo 'make release the muster command to install, at $(CARGO_TARGET_DIR)/release/muster'

# C++ compiler and libclang for RocksDB, where they are missing.
setup:
	@.ci/setup

build: setup
	cargo build --locked -p muster -p muster-gpu-double

demo: build
	@"$(CARGO_TARGET_DIR)/debug/muster" demo

# The command is built first: tests that start real processes run it.
test: setup
	cargo build --locked -p muster -p muster-gpu-double
	@cargo run --quiet --locked -p muster-xtask -- test --locked

# What docs/SECURITY.md lists, by its numbers. An ordinary user cannot isolate tasks fully: those attempts are skipped then, and say so.
attack: build
	cargo test --locked --workspace --no-fail-fast --test commands --test nodes --test access -- attempt_ planted_holes

# `make test` runs these tests too where MUSTER_OIDC_PROVIDER names the provider, as CI does. Fails where Node.js or npm is missing.
login-check: build
	@folder="$$(.ci/setup-oidc-provider)" && test -n "$$folder" \
	    && MUSTER_OIDC_PROVIDER="$$folder" cargo test --locked -p muster --test commands -- login_certified

# Exit status 0 only if nothing is broken. Example: make chaos CHAOS='power --rounds 200'
chaos: setup
	@.ci/setup-chaos
	cargo build --locked -p muster -p muster-chaos --bins
	@"$(CARGO_TARGET_DIR)/debug/muster-chaos" --logs "$(CARGO_TARGET_DIR)/chaos" $(CHAOS)

# What fails is kept in the build folder and named. The tests run every target on the kept inputs (fuzz/corpus/).
fuzz: setup
	cargo build --locked -p muster-fuzz
	@"$(CARGO_TARGET_DIR)/debug/muster-fuzz" --out "$(CARGO_TARGET_DIR)/fuzz" $(FUZZ)

check: setup
	cargo fmt --all -- --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo run --quiet --locked -p muster-xtask -- check

# The command as it is installed on a fleet's machines: the whole program optimised at once. It has a folder of its own, so the first build
# compiles the dependencies again: 13 minutes on two cores.
release: setup
	cargo build --locked --release -p muster

# Measures what is installed.
bench: release
	"$(CARGO_TARGET_DIR)/release/muster" bench all
