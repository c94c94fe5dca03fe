#!/bin/bash
# launch.sh RANKS COMMAND...: start the command on each rank, on the nodes of the current Slurm allocation. site.sh
# chooses the launcher.
set -euo pipefail
cd "$(dirname "$0")/.."
. slurm/site.sh
. slurm/job.sh
choose_launcher
unset OMPI_MCA_mpi_yield_when_idle  # no other program uses the cores of the job, so ranks may wait actively
launch "$@"
