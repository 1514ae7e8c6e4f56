# `make help` lists the targets. Everything a target needs that is missing on the machine is installed by scripts/setup.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unversioned)
# Tests are built as programs are.
export GOFLAGS += -tags=$(shell cat scripts/tags)
PROGRAMS := $(notdir $(patsubst %/,%,$(dir $(wildcard cmd/*/main.go))))

.PHONY: help run run-fleet test build bench lint package clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## serve: two example backends and outriderd in the foreground, until Ctrl-C
	scripts/run

run-fleet: build ## serve a fleet: Consul, outrider-discoveryd, two agents and three example backends, until Ctrl-C
	scripts/run-fleet

test: ## run every check and every test; the last line says how many passed
	scripts/setup test
	go run ./scripts/check

build: ## build the programs into build/
	VERSION='$(VERSION)' scripts/build build $(addprefix ./cmd/,$(PROGRAMS))

bench: ## run the benches and all tests (hours on a quiet machine); tables, and plots into docs/bench
	scripts/setup test
	go run ./scripts/bench -out docs/bench
	go run ./scripts/check -only test,systemd -durations docs/bench/tests.json
	OUTRIDER_RANDOM=10000 go test -run TestRandom -v -timeout 60m ./agent/discovery
	OUTRIDER_FIELDS=10000 go test -run TestMutation_RemovedFieldChangesAnAnswer -timeout 60m ./agent/discovery
	OUTRIDER_TEST_FULL=1 go test -count=1 -v -timeout 60m ./agent/discovery/differential
	OUTRIDER_TEST_FULL=1 go test -count=1 -v -timeout 60m -run 'TestNoRequestIsLost|TestStopUnderLoad|TestReloadsInARow|TestPhasesThatLast|TestBoot|TestCapture_|TestFleet_|TestIdle_|TestUpgrade_' ./scripts/machine/systemtest
	OUTRIDER_TEST_FULL=1 go test -count=1 -v -run TestIstiod_MutualTLSWithShortCertificates ./cmd/outriderd
	OUTRIDER_ROTATIONS=1000 go test -count=1 -run TestFiles_EveryRotationIsServed ./agent/identity
	OUTRIDER_TEST_FULL=1 go test -count=1 -v -timeout 60m -run TestUninstall_WithCompromisedEnvoy ./packaging
	go test -run '^$$' -bench . -benchmem -timeout 60m ./...
	go run ./scripts/check -only fuzz -fuzztime 60s

lint: ## run gofmt, golangci-lint (which includes go vet) and govulncheck
	go run ./scripts/check -only gofmt,golangci-lint,govulncheck

package: ## build deb and rpm into dist/
	scripts/package

clean: ## remove what was built
	rm -rf build dist
