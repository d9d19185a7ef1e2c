# `make demo` installs what a user needs; `make test` and the others add the tools of development.
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
ENGINE ?= docker
IMAGE ?= anytime-linear

.PHONY: demo test check-all clocks test-kernels test-versions check format same mutants bench bench-training bench-likelihood bench-serving bench-starting bench-runner bench-proxies bench-sessions bench-large bench-cluster bench-peers bench-tables soak loop overload faults load hostile image image-test docs lock release clean

demo: $(if $(wildcard .venv/ready),.venv/ready,.venv/demo-ready)
	$(BIN)/anytime demo $(ARGS)

test: .venv/ready
	$(BIN)/pytest --numprocesses auto --dist worksteal $(ARGS)

# Everything: all examples of properties, heavy tests, real time, all versions, all BLAS kernels. Every part runs, and the
# minutes of each are printed.
check-all: .venv/ready
	@failed=; \
	for part in check "test ARGS='--heavy --every-part'" clocks test-versions test-kernels; do \
	    begun=$$(date +%s); \
	    eval "TEST_EXAMPLES=1 $(MAKE) --no-print-directory $$part" || failed="$$failed; $$part"; \
	    echo "make check-all: $$part took $$(( ($$(date +%s) - begun + 30) / 60 )) min"; \
	done; \
	if [ -n "$$failed" ]; then echo "make check-all: failed$$failed"; exit 1; fi

# Promises about real time, one test after the other: on a machine that does nothing else.
clocks: .venv/ready
	$(BIN)/pytest tests/models/inference/clocks tests/service/clocks $(ARGS)

# The tests of the service with the lowest and the newest version of every package that the server needs, installed under
# .venv-versions; ARGS=--quick: the tests of the edge, with the lowest.
test-versions: .venv/ready
	$(BIN)/python tests/versions.py $(ARGS)

# The numerical tests under every BLAS kernel that runs on this machine, with one thread and with two.
test-kernels: .venv/ready
	$(BIN)/python tests/kernels.py $(ARGS)

# Changes one operator, constant or branch at a time in models/ and service/, runs the tests that reach it, and prints the
# share that is noticed, by folder, and the survivors; continues where it was stopped. ARGS='--sample 300 --seed 1': that
# many; --only FOLDER; --again: retry survivors; --report: print only. The first call runs all tests under coverage.
mutants: .venv/ready
	$(BIN)/python tests/mutants/run.py $(ARGS)

check: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests deploy
	$(BIN)/python deploy/audit.py requirements.lock

format: .venv/ready
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Builds the commit BASE in an environment of its own (.venv-same) and prints what the working tree does differently: the
# command line and the estimators with many options on several tables, and exchanges with the server.
# ARGS='--tolerance 1e-6' ignores smaller differences of numbers; '--only library' or service; '--match command/clinic';
# --fresh records BASE again.
BASE ?=
same: .venv/ready
	$(BIN)/python tests/same/run.py --base '$(BASE)' --data $(DATA) $(ARGS)

# All four run; a ratio of more than 1.15 times its limit fails.
bench: .venv/ready
	@$(MAKE) --keep-going --no-print-directory bench-training bench-likelihood bench-serving bench-starting ARGS=

bench-training: .venv/ready
	$(BIN)/python tests/benchmarks/training.py $(ARGS)

# Reads the data sets kddcup99 and mfeat in DATA.
DATA ?= ../shared/data
bench-likelihood: .venv/ready
	$(BIN)/python tests/benchmarks/likelihood.py --data $(DATA) $(ARGS)

bench-serving: .venv/ready
	$(BIN)/python tests/benchmarks/serving.py $(ARGS)

bench-starting: .venv/ready
	$(BIN)/python tests/benchmarks/starting.py $(ARGS)

# Compares Runner with a loop by hand on frames of a camera, in an environment with OpenCV and scikit-image under
# .venv-peers (Linux, two cores); ARGS=--quick: fewer frames.
bench-runner: .venv/ready
	$(BIN)/python tests/benchmarks/runner.py $(ARGS)

# Measures the service directly and behind each installed proxy of deploy/proxies.
bench-proxies: .venv/ready
	$(BIN)/python tests/benchmarks/proxies.py $(ARGS)

# Compares sessions in Redis with sessions in memory; needs redis-server.
bench-sessions: .venv/ready
	$(BIN)/python tests/benchmarks/sessions.py $(ARGS)

# Compares training, quality and serving with peers, each in its own environment under .venv-peers; writes
# peers-report.html. ARGS="--only training", rows, quality, defaults, published, prices, adaptive, serving, size, resequence
# or lasso; ARGS=--quick: a short run. Linux, two cores; reads the data sets in DATA. "prices" also writes the figures of a
# page of the gallery.
bench-peers: .venv/ready
	$(BIN)/python tests/benchmarks/peers/run.py --data $(DATA) $(ARGS)

# Trains on the tables of two packages without an option, next to scikit-learn's defaults; the packages have an environment
# under .venv-peers. ARGS='--sample 100': that many tables; --jobs 2; each result is a line of tables.jsonl, and --resume
# continues it.
bench-tables: .venv/ready
	$(BIN)/python tests/benchmarks/tables.py $(ARGS)

# Trains on 8 GB under a limit of 1 GiB (Linux, as root, 8 GB of disk); compares with reading and X.T @ X alone.
bench-large: .venv/ready
	$(BIN)/python tests/benchmarks/large.py $(ARGS)

# Compares one Dask worker with two, and with two where one is killed.
bench-cluster: .venv/ready
	$(BIN)/python tests/benchmarks/cluster.py $(ARGS)

# Ten minutes of predictions under deadlines, next to bare timers and hostile clients; ARGS=--quick: one minute.
soak: .venv/ready
	$(BIN)/python tests/benchmarks/deadlines.py $(ARGS)

# Slows an extractor of the demo, learns its cost in service, corrects the sequence and draws both; ARGS=--quick.
loop: .venv/ready
	$(BIN)/python tests/benchmarks/loop.py $(ARGS)

# Offers up to three times what the server can answer (Linux, two cores); ARGS=--quick: a second for each share;
# ARGS='--only goodput': computes the groups on the server, next to a server that computes all of them or refuses.
overload: .venv/ready
	$(BIN)/python tests/drills/overload.py $(ARGS)

# Faults under load, half a minute each; ARGS=--quick: seconds each. Needs root (for a disk), redis-server and faketime.
faults: .venv/ready
	$(BIN)/python tests/drills/faults.py $(ARGS)

# Half an hour at 70% of what the server can do; ARGS=--quick: one minute.
load: .venv/ready
	$(BIN)/python tests/drills/load.py $(ARGS)

# Hostile input next to well-behaved clients: known attacks, then ten minutes of random sequences, then ten minutes of
# random streams through each proxy; ARGS=--quick: each attack once, 20 seconds, 20 seconds.
hostile: .venv/ready
	$(BIN)/python tests/drills/hostile.py $(ARGS)
	$(BIN)/python tests/drills/accounting.py $(filter --quick,$(ARGS))
	$(BIN)/python tests/drills/costs.py $(filter --quick,$(ARGS))
	DESYNC_S=$(if $(filter --quick,$(ARGS)),20,600) $(BIN)/pytest -q tests/deploy/test_desync.py

# Pins with hashes for every platform and Python; the ranges are in pyproject.toml.
lock: .venv/ready
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --quiet \
	    --extra all --group dev pyproject.toml --output-file requirements.lock
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --quiet \
	    --constraint requirements.lock --extra serve --extra redis --extra telemetry pyproject.toml --output-file requirements-serve.lock
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --quiet --constraint requirements.lock \
	    --extra train --extra serve --extra client --extra plot --group build pyproject.toml --output-file requirements-demo.lock
	$(BIN)/uv pip compile --universal --generate-hashes --no-emit-index-url --quiet --constraint requirements.lock \
	    $(addprefix --no-emit-package ,quickjs-ng resvg-py termaid) --group docs --output-file requirements-docs.lock

# Writes the documentation site to site/, for reading without a network; fails on a broken link, a public name without a
# docstring, and a gallery script that fails.
docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file deploy/docs/mkdocs.yml
	@echo "wrote site/index.html"

# --no-deps: the pins are complete, and leave out what only unused parts of mmdc need.
.venv/docs-ready: .venv/ready requirements-docs.lock
	$(BIN)/pip install --quiet --no-deps --require-hashes -r requirements-docs.lock
	touch $@

# Wheel and sdist in dist/, checked in fresh environments of the lowest and the newest Python without and with extras;
# ARGS=--draft: the changelog may say "unreleased". ARGS='--python PATH' names an interpreter. A tag publishes a release
# (.github/workflows/release.yml).
release: .venv/ready
	$(BIN)/python deploy/release.py $(ARGS)

# Builds the server's image; ENGINE=podman needs ARGS='--format docker', or the health check is lost.
image:
	$(ENGINE) build --tag $(IMAGE) $(ARGS) .

# The quick starts for containers of deploy/README.md, as pasted; skips what does not run here.
image-test: .venv/ready
	ARGS="$(ARGS)" $(BIN)/python tests/image.py

# Python compiles modules when it first imports them (--no-compile): most are not imported.
.venv/demo-ready: requirements-demo.lock pyproject.toml
	@echo "Installing anytime-linear with train, serve, client and plot into .venv:" \
	    "$$(grep -c == requirements-demo.lock) packages, about 450 MB, once."
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --no-compile --disable-pip-version-check --require-hashes -r requirements-demo.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.venv/ready: requirements.lock pyproject.toml
	@echo "Installing the pins of requirements.lock, with the tools of development, into .venv: about 1.4 GB, once."
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf .venv .venv-peers .venv-same .venv-versions .mutants build dist site .mypy_cache .pytest_cache .ruff_cache
