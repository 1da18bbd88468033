# Two commands: `make demo` runs the whole circle, `make test` passes the tests. Both do all their own set-up.
VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
# Two threads fighting over two cores are slower than one (docs/log.md).
export OMP_WAIT_POLICY ?= passive
export KMP_BLOCKTIME   ?= 0

.PHONY: help setup system demo learn smollm test test-vllm test-deepspeed lint harness-matrix bench clean

help:
	@echo "make demo   the whole circle on this machine: images, a taught policy, rollouts, verdicts, training, evaluation"
	@echo "make test   lint, types and every test"
	@echo "make test-vllm  the tests of engine.kind=vllm, in an environment of its own (3.5 GB; docs/vllm.md)"
	@echo "make test-deepspeed  training in several processes, in every mode"
	@echo "make learn  six runs that show whether it learns (hours; stopped, it goes on); ends in docs/learn.md"
	@echo "make smollm a real model's weights through the whole circle (docs/models.md)"
	@echo "make harness-matrix  every shipped harness through scripted bug fixes, every sampled token proven (4.5 GB of images)"
	@echo "make bench  speed, as ratios in one run"

setup: $(VENV)/.installed system

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lego needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[train,dev]'
	touch $@

# What podman needs here, from the system's packages where we may install them.
system:
	@sh tools/system.sh

demo: setup
	sh tools/demo.sh $(BIN)/lego

# LEARN_DIR: where the runs lie. One thread each: the model is too small for more.
LEARN_DIR ?= runs
learn: setup
	OMP_NUM_THREADS=1 $(BIN)/python tools/learn.py --dir $(LEARN_DIR)

smollm: setup
	sh tools/smollm.sh $(BIN)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: setup lint
	$(BIN)/python -m pytest

# docs/harnesses.md says what the table means; the newest one is in docs/log.md.
harness-matrix: setup
	OMP_NUM_THREADS=1 $(BIN)/lego check --all-harnesses --table
	LEGO_REQUIRE=mini-swe-agent,openhands,terminus-2,opencode,qwen-code $(BIN)/python -m pytest \
		tests/harness/test_big.py tests/harness/test_fault_table.py

# Every ZeRO stage, in one process and in two, with and without offloading (whose optimizer is compiled first).
test-deepspeed: setup
	OMP_NUM_THREADS=1 LEGO_REQUIRE=deepspeed $(BIN)/python -m pytest tests/trainer/test_deepspeed.py tests/trainer/test_minibatches.py \
		tests/trainer/test_lora_deepspeed.py tests/trainer/test_hosts.py tests/e2e/test_deepspeed.py

VLLM_VENV ?= .venv-vllm
$(VLLM_VENV)/.installed: pyproject.toml tools/vllm.sh
	sh tools/vllm.sh $(VLLM_VENV) $(PYTHON)
	touch $@

test-vllm: $(VLLM_VENV)/.installed
	LEGO_REQUIRE=vllm $(VLLM_VENV)/bin/python -m pytest tests/engine/test_vllm.py tests/engine/test_vllm_probe.py \
		tests/trajectory/test_vllm_reader.py

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) $(VLLM_VENV) build *.egg-info
