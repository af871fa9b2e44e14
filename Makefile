# Every command creates the environment if it is missing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test check chromium docs wheel wheel-test results bench fuzz chaos soak clean

demo: .venv/.installed
	$(BIN)/metrix demo $(ARGS)

test: .venv/.installed check chromium
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2  # a process for each of two cores, a thread in each

check: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/biome format
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --recursive -ll src
	$(BIN)/python .ci/audit

# For the tests of the explorer page; without it they are skipped, and say so.
chromium:
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& { apt-get install -y -qq chromium >/dev/null 2>&1 \
			|| { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }; }; } \
		|| echo "Chromium is missing and cannot be installed here: the tests of the page will be skipped"

# The documentation as a site: build/site/index.html
docs: .venv/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html"

# dist/: the wheel and the source distribution
wheel: .venv/.installed
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# The tests of the command line, reports, search and packaging against the installed wheel, in an environment of its own.
WHEEL_TESTS ?= tests/cli tests/report tests/serve/test_service.py tests/search/test_index.py tests/test_public_names.py \
	tests/test_packaging.py tests/test_extras.py
wheel-test: wheel
	rm -rf build/wheel-env && $(PYTHON) -m venv build/wheel-env
	build/wheel-env/bin/pip install --quiet --constraint constraints.txt \
		"$$(echo dist/metrix-*.whl)[search,report,serve,tensorboard,onnx,milvus]" pytest pytest-xdist httpx hypothesis
	cd build && METRIX_WHEEL=1 OMP_NUM_THREADS=1 wheel-env/bin/python -m pytest --rootdir .. -c ../pyproject.toml $(addprefix ../,$(WHEEL_TESTS))

# The tables and the figure of docs/results.md, from the runs in docs/measured/
results: .venv/.installed
	$(BIN)/python docs/measured/tables.py

bench: .venv/.installed
	$(BIN)/python -m benchmarks $(ARGS)

# Attacks: bad input, killed processes, long work. E.g. make fuzz ARGS="--inputs 500"
fuzz chaos soak: .venv/.installed
	$(BIN)/python -m faults $@ $(ARGS)

.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
