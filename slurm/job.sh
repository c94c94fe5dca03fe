# Functions of all batch scripts, which read this file after site.sh.

CHECKPOINTED=75  # the exit code of a run that ended after a checkpoint

# attend COMMAND...: run a command and return its exit code. The command runs in the background, because bash does not
# handle signals while a command runs in the foreground. At the first SIGTERM, or SIGUSR1, which Slurm sends before the
# time limit, call the function `stop` with the name of the signal. At each SIGUSR2, call the function `save`. The
# functions `stop` and `save` must be defined before.
attend() {
    local code
    signal=
    trap 'seen=yes; on_signal USR1' USR1
    trap 'seen=yes; on_signal TERM' TERM
    trap 'seen=yes; save' USR2
    "$@" &
    child=$!
    until seen=; wait "$child" && code=0 || code=$?; [[ -z $seen ]]; do :; done  # signals end `wait` only
    return "$code"
}

on_signal() {
    [[ -z $signal ]] || return 0
    signal=$1
    stop "$signal"
}

# srun_mpi: print the option that tells srun how to connect the ranks; nothing for the site's default.
srun_mpi() {
    [[ $SRUN_MPI == default ]] || echo --mpi="$SRUN_MPI"
}

# computing_threads: print the number of threads that compute in each rank. From four cores on, one core is left to the
# thread that moves messages.
computing_threads() {
    local cores=${SLURM_CPUS_PER_TASK:-1}
    echo "${THREADS:-$((cores >= 4 ? cores - 1 : cores))}"
}

# srun_bind COMMAND...: print the option by which srun binds ranks to cores; nothing for the site's default. With GPUs,
# the ranks of `grsgd train` bind themselves to cores near their GPUs.
srun_bind() {
    local config
    [[ -z ${SLURM_CPU_BIND:-} && ${GRSGD_BIND:-} != off ]] || return 0
    config=$(scontrol show config 2> /dev/null) || return 0
    [[ $config =~ TaskPlugin[^$'\n']*affinity ]] || return 0
    if [[ -z ${SLURM_GPUS_ON_NODE:-}${SLURM_JOB_GPUS:-} ]]; then
        echo --cpu-bind=cores
    elif [[ " $* " == *" grsgd train "* ]]; then
        echo --cpu-bind=none
    fi
}

# launch RANKS COMMAND...: replace this shell by the launcher, which starts the command on each rank.
launch() {
    local ranks=$1
    shift
    OMP_NUM_THREADS=$(computing_threads)
    export OMP_NUM_THREADS
    if [[ $LAUNCHER == srun ]]; then
        # Recent versions of srun ignore the --cpus-per-task of sbatch.
        [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
        # shellcheck disable=SC2046,SC2086
        exec srun $(srun_mpi) $(srun_bind "$@") --ntasks="$ranks" --kill-on-bad-exit=1 $LAUNCH_OPTIONS "$@"
    fi
    if [[ -n ${SLURM_GPUS_PER_TASK:-} && ${SLURM_JOB_NUM_NODES:-1} != 1 ]]; then
        echo "mpiexec: with --gpus-per-task, all ranks of a further node would share its first GPUs:" \
            "submit with --gpus-per-node, or with LAUNCHER=srun" >&2
        exit 2
    fi
    # The allocation decides on which nodes the ranks run, and the ranks bind themselves to cores. Open MPI would bind a
    # rank with all its threads to one core; on a shared node, this core may belong to another job.
    unset PRTE_MCA_rmaps_default_mapping_policy OMPI_MCA_rmaps_base_oversubscribe
    export PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_hwloc_base_binding_policy=none
    # shellcheck disable=SC2086
    exec mpiexec -n "$ranks" $LAUNCH_OPTIONS "$@"
}

# launch_watched RANKS CONFIG.toml ...: replace this shell by `grsgd run`, which starts the run again on the other nodes
# if a node is lost, at most $RESTARTS times.
launch_watched() {
    local ranks=$1
    shift
    if [[ -n $LAUNCH_OPTIONS ]]; then
        echo "RESTARTS: not with LAUNCH_OPTIONS: set variables of the MPI library instead" >&2
        exit 2
    fi
    OMP_NUM_THREADS=$(computing_threads)
    export OMP_NUM_THREADS
    [[ $SRUN_MPI == default ]] || export SLURM_MPI_TYPE=$SRUN_MPI
    unset PRTE_MCA_rmaps_default_mapping_policy OMPI_MCA_rmaps_base_oversubscribe  # see `launch`
    exec python -P -m grsgd run -n "$ranks" --launcher "$LAUNCHER" --restarts "$RESTARTS" "$@"
}

# choose_launcher: replace LAUNCHER=auto by srun, if srun can start a rank here, or else by mpiexec. The list of
# `srun --mpi=list` does not decide, because it also names plugins that do not work.
choose_launcher() {
    [[ $LAUNCHER == auto ]] || return 0
    LAUNCHER=mpiexec
    # shellcheck disable=SC2046
    ! timeout 60 srun $(srun_mpi) --nodes=1 --ntasks=1 true &> /dev/null || LAUNCHER=srun
}

# signal_ranks SIGNAL: send the signal to the ranks. SIGTERM to srun would kill the ranks at once; `grsgd run` passes
# signals on to the ranks.
signal_ranks() {
    if [[ $LAUNCHER == srun && -z ${RESTARTS:-} ]]; then
        scancel --signal="$1" "$SLURM_JOB_ID"
    else
        kill -"$1" "$child"
    fi
}

# has_checkpoints FOLDER: whether the folder has checkpoints. `compgen -G` would read brackets in the folder's name as a
# pattern.
has_checkpoints() {
    local found=("$1"/samples-*)
    [[ -e ${found[0]} ]]
}

# train RANKS FILE.h5 CONFIG.toml [--set key=value ...]: make a training run. The run file is written to $SCRATCH and
# then moved to FILE.h5 in one step; if the run file cannot be moved, it stays in $SCRATCH. If a signal ends the run,
# the file has the measurements until the signal. With $EVERY, the run takes checkpoints; if the run ends after a
# checkpoint (exit code 75), the job is requeued, and the run resumes. After SIGUSR2 the run takes a checkpoint and goes
# on. With $RESTARTS, the run goes on inside the job after the loss of a node.
train() {
    local ranks=$1 file=$2 code=0 ending=TERM kept=${2%.h5}.checkpoints folder scratch words
    shift 2
    if [[ -n ${EVERY:-} ]]; then
        ending=USR1
        set -- "$@" --every "$EVERY" "$(has_checkpoints "$kept" && echo --resume || echo --checkpoint)" "$kept"
    fi
    mkdir -p "$SCRATCH" "$(dirname "$file")"
    folder=$(mktemp -d "$SCRATCH/grsgd-$SLURM_JOB_ID-XXXXXX")  # other users cannot predict the folder's name
    scratch=$folder/$(basename "$file")
    words=$(mktemp -d "$SCRATCH/grsgd-words-XXXXXX")  # in this folder, the saving rank marks the run file as complete
    export GRSGD_WORDS=$words
    choose_launcher
    echo "$(date '+%F %T'): $ranks ranks by $LAUNCHER on $SLURM_JOB_NODELIST, start ${SLURM_RESTART_COUNT:-0}: $*"
    stop() { [[ $1 == TERM ]] || signal_ranks "$ending"; }  # Slurm sends SIGTERM to all processes of the job
    save() { signal_ranks USR2; }
    if [[ -n ${RESTARTS:-} ]]; then
        attend launch_watched "$ranks" "$@" --out "$scratch" || code=$?
    else
        attend launch "$ranks" python -P -m grsgd train "$@" --out "$scratch" || code=$?
    fi
    if ((code == 0)) && [[ -z ${RESTARTS:-} ]] && ! compgen -G "$words/whole-*" > /dev/null; then
        echo "the launcher's exit code is 0, but no rank has said that the run file is whole: $file" >&2
        code=1
    fi
    rm -rf "$words"
    if [[ ! -e $scratch ]]; then
        rm -rf "$folder"
    elif cp "$scratch" "$file.part" && mv "$file.part" "$file"; then
        rm -rf "$folder"
        echo "moved to $file"
    else
        rm -f "$file.part"
        echo "$file cannot be written: the run file remains on node $(uname -n) as $scratch" >&2
        ((code)) || code=1
    fi
    if ((code == CHECKPOINTED)) && [[ $signal == USR1 ]]; then
        scontrol requeue "$SLURM_JOB_ID"
    elif ((code == 0)) && [[ -n ${EVERY:-} ]]; then
        rm -rf "$kept"
    fi
    return "$code"
}
