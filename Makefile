# `make demo` and `make test` do all the set-up they need on a fresh machine.
PYTHON ?= python3
PIP = .venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt
READY = .venv/ready
# Scripts that tests and benchmarks start as processes import helpers from tests/support.
export PYTHONPATH := $(CURDIR)/tests
# Some images set it. Then each of the hundreds of processes that the targets start compiles everything it imports.
unexport PYTHONDONTWRITEBYTECODE
KERNELS = $(wildcard protocol/prime_protocol/native/*.[ch] node/prime_node/engine/native/*.[ch])

.PHONY: help demo test check freeze house sim fuzz story contracts chaos soak bench bench-smoke oracle clean attacks

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/'

demo: $(READY)  ## a whole network on this machine trains a tiny model and catches a cheater (DEMO=--exit: end when done)
	@.venv/bin/python -m prime_lab.devnet $(DEMO)

test: $(READY) .vllm/ready  ## every test; fails under 100 % branch coverage of prime_protocol
	sh tests/install_packages.sh test
	.venv/bin/python -m pytest -n 3 --dist worksteal --cov --cov-report=term-missing:skip-covered

check: $(READY)  ## format, lint, types, import rules, house style
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache
	.venv/bin/python -m pytest -q tests/test_tidy.py

freeze: $(READY)  ## write the frozen logs of this release, which every later one must replay: tests/vectors/logs
	PYTHONPATH=tests:. .venv/bin/python tools/freeze_log.py

house: $(READY)  ## count files, folders, words, names used twice and dead code against their limits
	.venv/bin/python tools/house.py

sim: $(READY)  ## 1,000 seeds of 200 nodes, a fifth of them malicious, in the simulator
	.venv/bin/python -m prime_lab.simulator --seeds 1000 --nodes 200 --malicious 0.2 --jobs 2

attacks: MINUTES ?= 1440
attacks: $(READY) .models/ready  ## every attack we know, many times, on a tiny model and a pretrained one: error rates and curves (MINUTES=9: stop then, and go on with the same command)
	OMP_NUM_THREADS=1 .venv/bin/python -m prime_lab.attacks --pretrained .models/smollm2 --out docs/verification --minutes $(MINUTES)

fuzz: $(READY)  ## 100,000 hostile inputs for each parser
	FUZZ_INPUTS=100000 .venv/bin/python -m pytest -n 2 --timeout 3600 tests/fuzz

chaos: $(READY)  ## break a network of real processes by a schedule, two minutes of faults (SEED=1 is which)
	sh tests/install_packages.sh chaos
	PYTHONPATH=tests .venv/bin/python -m chaos --seed $(or $(SEED),1) --seconds 100 $(CHAOS)

soak: $(READY)  ## the same for an hour, half of it on PostgreSQL, a bucket and a chain (SOAK_S= seconds of each half)
	sh tests/install_packages.sh chaos
	PYTHONPATH=tests .venv/bin/python -m chaos --seed $(or $(SEED),1) --seconds $(or $(SOAK_S),1800)
	PYTHONPATH=tests .venv/bin/python -m chaos --seed $(or $(SEED),1) --seconds $(or $(SOAK_S),1800) --services --chain

story: $(READY)  ## a whole story on a real chain: stake, cheat, slash, appeals, penalty, bounty, pay, claim, withdraw, with kills, a restart and a reorg
	sh tests/install_packages.sh contracts
	SLOW_TESTS=1 .venv/bin/python -m pytest -q tests/integration/test_chain_network.py tests/integration/test_chain_challenge.py tests/integration/test_chain_findings.py

contracts: $(READY)  ## the contracts in full: 10,000 runs per property, coverage, lint, model, gas
	sh tests/install_packages.sh contracts
	cd contracts && sh tools/check.sh
	CONTRACT_EXAMPLES=1000 .venv/bin/python -m pytest -q --timeout 3600 tests/contracts
	.venv/bin/python bench/gas.py

bench-smoke: $(READY)  ## every benchmark at its smallest size: fails where one does not run through
	.venv/bin/python bench/run_all.py --smoke

bench: $(READY) .oracle/ready .vllm/ready  ## every benchmark, each ending in a RESULT line
	sh tests/install_packages.sh contracts
	.venv/bin/python bench/run_all.py

oracle: .oracle/ready  ## the public packages that vectors and benchmarks compare with

.oracle/ready: tests/oracle/build_toploc.sh tests/oracle/install_shardcast.sh tests/oracle/install_trl.sh | $(READY)
	bash tests/oracle/build_toploc.sh
	bash tests/oracle/install_shardcast.sh
	sh tests/oracle/install_trl.sh
	touch $@

.models/ready: tests/oracle/install_smollm2.sh tests/oracle/convert_smollm2.py | $(READY)
	sh tests/oracle/install_smollm2.sh
	touch $@

.vllm/ready: tests/oracle/install_vllm.sh tests/oracle/vllm_packages.txt
	sh tests/oracle/install_vllm.sh
	touch $@

$(READY): pyproject.toml lab/pyproject.toml constraints.txt hashes.txt hatch_build.py tests/install_packages.sh $(KERNELS)
	sh tests/install_packages.sh build
	$(PYTHON) -m venv .venv
	$(PIP) --upgrade pip
	$(PIP) --require-hashes --no-deps --requirement hashes.txt
	$(PIP) --editable '.[node,tasks,p2p,evm,dev]'
	$(PIP) --no-deps --editable lab
	touch $@

clean:  ## remove what the other targets made
	rm -rf .venv .oracle .vllm .models tests/interop/node_modules contracts/node_modules contracts/out contracts/.slither .hypothesis .mypy_cache .ruff_cache .coverage
