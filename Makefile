# One command each: `make demo` and `make test` set up everything they need.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
ENGINE ?= docker
IMAGE ?= anytime-linear

.PHONY: demo test test-kernels check format bench bench-training bench-likelihood bench-serving bench-proxies bench-sessions bench-large bench-cluster bench-peers soak loop overload faults load hostile image lock clean

demo: .venv/ready
	$(BIN)/anytime demo $(ARGS)

# In two halves: tests that share the cores; and those of the service, which have deadlines and run alone, except PATIENT.
# The second half runs even if the first fails. Pytest exits with 5 where ARGS selects no test, an error only in both.
PATIENT := $(addprefix tests/service/test_,auth_console.py console_page.py demo_extractors.py drill_judges.py drill_tools.py)
test: .venv/ready
	@trap 'exit 130' INT; \
	said() { case $$1 in 0) echo passed;; 5) echo "ran no tests";; *) echo "FAILED (exit code $$1)";; esac; }; \
	$(BIN)/pytest --numprocesses auto --maxprocesses 4 --dist loadfile \
	    $(filter-out tests/service/,$(wildcard tests/*/)) $(wildcard tests/test_*.py) $(PATIENT) $(ARGS); shared=$$?; \
	$(BIN)/pytest tests/service $(addprefix --ignore=,$(PATIENT)) $(ARGS); alone=$$?; \
	echo "make test: tests that share the cores $$(said $$shared); tests of the service that run alone $$(said $$alone)"; \
	case $$shared$$alone in 00|05|50) ;; *) exit 1;; esac

# The numerical tests under every BLAS kernel that runs on this machine, with one thread and with two.
test-kernels: .venv/ready
	$(BIN)/python tests/kernels.py $(ARGS)

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests deploy
	$(BIN)/python deploy/audit.py requirements.lock

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: bench-training bench-likelihood bench-serving

bench-training: .venv/ready
	$(BIN)/python tests/benchmarks/training.py $(ARGS)

# Reads the data sets of DATA: kddcup99 and mfeat.
DATA ?= ../shared/data
bench-likelihood: .venv/ready
	$(BIN)/python tests/benchmarks/likelihood.py --data $(DATA) $(ARGS)

bench-serving: .venv/ready
	$(BIN)/python tests/benchmarks/serving.py $(ARGS)

# Asked directly, and by each proxy of deploy/proxies that is installed.
bench-proxies: .venv/ready
	$(BIN)/python tests/benchmarks/proxies.py $(ARGS)

# Sessions in Redis beside sessions in memory; needs redis-server.
bench-sessions: .venv/ready
	$(BIN)/python tests/benchmarks/sessions.py $(ARGS)

# Training, quality and serving beside what else there is, each rival in an environment of its own under .venv-peers, as peers-report.html.
# ARGS="--only training", rows, quality, serving, size, resequence or lasso; ARGS=--quick: a look. Linux, two cores; reads the data sets of DATA.
bench-peers: .venv/ready
	$(BIN)/python tests/benchmarks/peers/run.py --data $(DATA) $(ARGS)

# A table of 8 GB under a limit of 1 GiB (Linux, as root, 8 GB of disk), and beside what it cannot be faster than.
bench-large: .venv/ready
	$(BIN)/python tests/benchmarks/large.py $(ARGS)

# One Dask worker beside two, and beside two of which one is killed.
bench-cluster: .venv/ready
	$(BIN)/python tests/benchmarks/cluster.py $(ARGS)

# Ten minutes of predictions under deadlines, beside bare timers, and beside hostile clients; ARGS=--quick: one minute.
soak: .venv/ready
	$(BIN)/python tests/benchmarks/deadlines.py $(ARGS)

# A slow extractor of the demo, its cost learned in service, the sequence put in order: a picture before and after; ARGS=--quick.
loop: .venv/ready
	$(BIN)/python tests/benchmarks/loop.py $(ARGS)

# Up to three times what the server can answer (Linux, two cores); ARGS=--quick: a second for each share.
overload: .venv/ready
	$(BIN)/python tests/drills/overload.py $(ARGS)

# Faults under load, half a minute each; ARGS=--quick: seconds each. As root, for a disk of its own; needs redis-server and faketime.
faults: .venv/ready
	$(BIN)/python tests/drills/faults.py $(ARGS)

# Half an hour at 70% of what the server can do; ARGS=--quick: one minute.
load: .venv/ready
	$(BIN)/python tests/drills/load.py $(ARGS)

# Hostile input next to well-behaved clients: known attacks, then ten minutes of random sequences; ARGS=--quick: each attack once, 20 seconds.
hostile: .venv/ready
	$(BIN)/python tests/drills/hostile.py $(ARGS)
	$(BIN)/python tests/drills/accounting.py $(filter --quick,$(ARGS))

# Pins with hashes for every platform and Python; the ranges are in pyproject.toml.
lock: .venv/ready
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --quiet \
	    --extra all --group dev pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --quiet \
	    --constraint requirements.lock --extra serve --extra redis --extra telemetry pyproject.toml --output-file requirements-serve.lock

# The server alone; ENGINE=podman needs ARGS='--format docker', or the health check is lost.
image:
	$(ENGINE) build --tag $(IMAGE) $(ARGS) .

.venv/ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf .venv .venv-peers build dist .mypy_cache .pytest_cache .ruff_cache
