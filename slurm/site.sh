# Settings of your cluster. Every batch script reads this file; submit from the root folder of the checkout. Edit the
# settings here, or set the variables when you submit.

# Modules, and the Python environment with grsgd. If there is no .venv, jobs inherit the environment of the shell that
# submits them.
# module load openmpi cuda
[[ ! -e .venv/bin/activate ]] || . .venv/bin/activate

# RESULTS: the folder of finished run files, on a file system that you can also read. SCRATCH: the folder in which the
# first node of a job writes run files before it moves them to RESULTS.
RESULTS=${RESULTS:-results}
SCRATCH=${SCRATCH:-${TMPDIR:-/tmp}}

# PROFILE: settings for one MPI library and network, the name of a file of slurm/profiles; empty for none.
PROFILE=${PROFILE:-}
if [[ -n $PROFILE && ! -e slurm/profiles/$PROFILE.sh ]]; then
    echo "PROFILE=$PROFILE: there is no slurm/profiles/$PROFILE.sh; there are: $(cd slurm/profiles && echo *.sh)" >&2
    exit 2
fi
[[ -z $PROFILE ]] || . "slurm/profiles/$PROFILE.sh"

# LAUNCHER starts the ranks: srun, mpiexec (of Open MPI or MPICH), or auto. auto is srun if `srun --mpi=$SRUN_MPI` works
# on this cluster, and mpiexec otherwise. SRUN_MPI=default: srun without --mpi, with the site's default. LAUNCH_OPTIONS:
# further options for the launcher.
LAUNCHER=${LAUNCHER:-auto}
SRUN_MPI=${SRUN_MPI:-pmix}
LAUNCH_OPTIONS=${LAUNCH_OPTIONS:-}

# THREADS: number of threads that compute in each rank; empty for the cores of --cpus-per-task, from four cores on
# without the core of the thread that moves messages. GRSGD_BIND: whether ranks bind themselves to cores: auto, on or
# off.
THREADS=${THREADS:-}
export GRSGD_BIND=${GRSGD_BIND:-auto}

# RESTARTS: largest number of times that a run of train.sbatch, submitted with EVERY and `sbatch --no-kill`, is started
# again inside the job after the loss of a node; empty for none.
RESTARTS=${RESTARTS:-}

# sbatch does not read this file. To set your account and partition, put
#     export SBATCH_ACCOUNT=... SBATCH_PARTITION=...
# into your shell's profile.
