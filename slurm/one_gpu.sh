#!/bin/bash
# one_gpu.sh COMMAND...: run a command that sees one of the GPUs that Slurm gave to this node: the first rank of the node
# the first one, and so on.
set -euo pipefail
# Under mpiexec SLURM_LOCALID is that of mpiexec's daemon.
local_rank=${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-${SLURM_LOCALID:-0}}}
IFS=, read -ra gpus <<< "${CUDA_VISIBLE_DEVICES:?Slurm has not said which GPUs are those of this job}"
export CUDA_VISIBLE_DEVICES=${gpus[local_rank % ${#gpus[@]}]}
exec "$@"
