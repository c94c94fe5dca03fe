# All that depends on your cluster; every batch script reads it, in the root folder of the checkout. Edit it here, or set
# the variables when you submit.

# Modules, and the environment that grsgd is installed in; without any, jobs have that of the shell they are submitted in.
# module load openmpi cuda
[[ ! -e .venv/bin/activate ]] || . .venv/bin/activate

# Where run files end up, on a file system that you see too; where they are written before, on the job's first node.
RESULTS=${RESULTS:-results}
SCRATCH=${SCRATCH:-${TMPDIR:-/tmp}}

# What starts ranks: srun, mpiexec (of Open MPI or MPICH), or auto, which is srun if `srun --mpi=$SRUN_MPI` works here;
# and more options for it. SRUN_MPI=default: srun without --mpi, which takes the site's default.
LAUNCHER=${LAUNCHER:-auto}
SRUN_MPI=${SRUN_MPI:-pmix}
LAUNCH_OPTIONS=${LAUNCH_OPTIONS:-}

# Account and partition are for sbatch, which does not read this file but knows variables for them: put
#     export SBATCH_ACCOUNT=... SBATCH_PARTITION=...
# into your shell's profile.
