# Everything runs inside .venv, made on first use. `make demo` shows what vitreous does, `make test` proves it.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# Each marker file remembers that the installation it names is newer than pyproject.toml.
CORE := $(VENV)/core-installed
DEV := $(VENV)/dev-installed

.PHONY: demo lint types test test-all test-slow check format figures bench docs wheel image clean

$(CORE): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable ".[web,det]"
	touch $@

$(DEV): $(CORE)
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

demo: $(CORE)
	$(BIN)/vitreous demo

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(DEV)
	$(BIN)/mypy

# All but the tests that start processes or a browser (`system`) and those that take minutes (`slow`).
test: $(DEV)
	$(BIN)/pytest --numprocesses 2 --dist worksteal

test-all: $(DEV)
	$(BIN)/pytest --numprocesses 2 --dist worksteal -m "not slow"

test-slow: $(DEV)
	$(BIN)/pytest -m slow

check: lint types test

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The table that `vitreous info` prints; needed when a model is added or changes its size.
figures: $(CORE)
	$(BIN)/python -m vitreous.figures.counting

# The comparisons of docs/benchmarks.md, an hour or more; the last measures dozens of models. Tables and charts are in runs/bench.
bench: $(DEV)
	$(BIN)/vitreous bench paca_tiny convnext_tiny pvt_v2_b1 --baseline convnext_tiny --size 224:8 1024:1 --out runs/bench/paca
	$(BIN)/vitreous bench paca_tiny convnext_tiny --baseline convnext_tiny --size 224:8 1024:1 --busy --rounds 4 --out runs/bench/busy
	$(BIN)/vitreous bench paca_tiny pvt_v2_b1 convnext_tiny --baseline pvt_v2_b1 --size 224:8 --step train --mode eager bf16 --rounds 5 --out runs/bench/train
	$(BIN)/vitreous bench xcit_tiny_12_p16 xcit_tiny_12_p16_224 --baseline xcit_tiny_12_p16_224 --size 224:8 1024:1 --out runs/bench/xcit_tiny
	$(BIN)/vitreous bench xcit_small_12_p16 xcit_small_12_p16_224 --baseline xcit_small_12_p16_224 --size 224:8 1024:1 --out runs/bench/xcit_small
	$(BIN)/vitreous bench paca_tiny xcit_tiny_12_p16 emsnet_xtiny --size 512:1 1024:1 2048:1 --rounds 3 --out runs/bench/growth
	$(BIN)/vitreous bench paca_tiny convnext_tiny --baseline convnext_tiny --mode eager compiled --size 224:8 1024:1 --rounds 5 --out runs/bench/compiled
	$(BIN)/vitreous bench paca_tiny xcit_tiny_12_p16 mat_2 partialformer_b1 emsnet_xtiny pvt_v2_b1 convnext_tiny --baseline pvt_v2_b1 --mode eager openvino --size 224:1 224:8 1024:1 --rounds 5 --out runs/bench/exported
	$(BIN)/vitreous bench mat_2 partialformer_b1 emsnet_xtiny pvt_v2_b0 --baseline pvt_v2_b0 --size 224:8 --out runs/bench/small
	$(BIN)/vitreous bench paca_tiny --pareto --size 224:8 --out runs/bench/pareto

# The pages of docs/ as a site in site/, which can be read offline; a dead link or an unknown name fails.
docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

wheel: $(DEV)
	$(BIN)/python -m hatchling build -t wheel

# A container, for the CPU or with CUDA: make image IMAGE=vitreous:cuda BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 EXTRAS=web,video
# PIP_EXTRA_INDEX_URL names where pip finds a torch without CUDA; else it takes the usual one, which brings CUDA's libraries.
IMAGE ?= vitreous
image:
	docker build --tag $(IMAGE) $(foreach name,BASE EXTRAS PIP_EXTRA_INDEX_URL,$(if $($(name)),--build-arg $(name)=$($(name)))) .

clean:
	rm -rf $(VENV) dist build site .pytest_cache .mypy_cache .ruff_cache .hypothesis
