#!/bin/bash
# launch.sh RANKS COMMAND...: start ranks on the nodes of the allocation that this runs in, with the launcher of site.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
. slurm/site.sh
. slurm/job.sh
choose_launcher
unset OMPI_MCA_mpi_yield_when_idle  # here no other program wants the cores
launch "$@"
