.DEFAULT_GOAL := help
PYTHON := .venv/bin/python

.PHONY: help setup demo check security test bench soak fuzz vm ship clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## put everything into .venv; quick when there is nothing to do
	@scripts/setup.sh

demo: setup ## show a sandbox at work and its walls holding
	@$(PYTHON) examples/demo.py

check: setup ## format, lint, types, unit, repository and Rust tests
	@scripts/test.sh check

security: setup ## attack this machine's real runtime; prints what was skipped and why
	@scripts/test.sh security

test: setup ## everything that continuous integration runs
	@scripts/test.sh all

bench: ## peers and us on this machine in one run; writes bench-results.json
	@scripts/setup.sh bench
	@$(PYTHON) -m benches

soak: setup ## long runs: thousands of sandboxes, kills at every step
	@scripts/soak.sh

fuzz: setup ## decoders and parsers against far more inputs than `make test` takes
	@scripts/fuzz.sh

vm: setup ## smoke, contract and user sessions on a kernel with cgroup v2 alone, in QEMU; needs root
	@tests/vm/boot.sh plain
	@tests/vm/boot.sh systemd

ship: setup ## wheel, checksum and SBOM in dist/, installed and tried in a clean venv
	@scripts/ship.sh

clean: ## remove everything that was built, .venv included
	@rm -rf .venv dist cell/target src/cloister/bin bench-results.json benches/floor/floor
