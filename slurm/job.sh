# What the batch scripts share, read after site.sh.

CHECKPOINTED=75  # the exit code of a run that ended after a checkpoint

# attend COMMAND...: run a command in the background, for only then does bash see to signals, and return its exit code.
# At SIGUSR1, which Slurm sends before the time limit, or SIGTERM the function `stop` is called, once, with the signal.
attend() {
    local code
    signal=
    trap 'seen=yes; on_signal USR1' USR1
    trap 'seen=yes; on_signal TERM' TERM
    "$@" &
    child=$!
    until seen=; wait "$child" && code=0 || code=$?; [[ -z $seen ]]; do :; done  # a signal ends `wait`, too
    return "$code"
}

on_signal() {
    [[ -z $signal ]] || return 0
    signal=$1
    stop "$signal"
}

# srun_mpi: the option that tells srun how to connect the ranks; none for the site's default.
srun_mpi() {
    [[ $SRUN_MPI == default ]] || echo --mpi="$SRUN_MPI"
}

# launch RANKS COMMAND...: the command becomes that of the launcher.
launch() {
    local ranks=$1
    shift
    export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}
    if [[ $LAUNCHER == srun ]]; then
        # srun does not take the number from sbatch any more.
        [[ -z ${SLURM_CPUS_PER_TASK:-} ]] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
        # shellcheck disable=SC2046,SC2086
        exec srun $(srun_mpi) --ntasks="$ranks" --kill-on-bad-exit=1 $LAUNCH_OPTIONS "$@"
    fi
    # Where ranks go is up to the allocation, and which of its cores they use up to the kernel: Open MPI would bind a
    # rank with all its threads to one core, and on a shared node to one that another job has.
    unset PRTE_MCA_rmaps_default_mapping_policy OMPI_MCA_rmaps_base_oversubscribe
    export PRTE_MCA_hwloc_default_binding_policy=none OMPI_MCA_hwloc_base_binding_policy=none
    # shellcheck disable=SC2086
    exec mpiexec -n "$ranks" $LAUNCH_OPTIONS "$@"
}

# choose_launcher: srun or mpiexec in place of auto. `srun --mpi=list` also names plugins that do not work.
choose_launcher() {
    [[ $LAUNCHER == auto ]] || return 0
    LAUNCHER=mpiexec
    # shellcheck disable=SC2046
    ! timeout 60 srun $(srun_mpi) --nodes=1 --ntasks=1 true &> /dev/null || LAUNCHER=srun
}

# end_launch SIGNAL: the signal for the ranks. srun itself would kill them at once.
end_launch() {
    if [[ $LAUNCHER == srun ]]; then
        scancel --signal="$1" "$SLURM_JOB_ID"
    else
        kill -"$1" "$child"
    fi
}

# has_checkpoints FOLDER: whatever letters its name has; `compgen -G` would take brackets in it for a pattern.
has_checkpoints() {
    local found=("$1"/samples-*)
    [[ -e ${found[0]} ]]
}

# train RANKS FILE.h5 CONFIG.toml [--set key=value ...]: the file is written to scratch and then moved, whole or not at
# all; if it cannot be moved, it stays there. After a signal it has what was measured until then. With $EVERY checkpoints
# are taken; a run that ends after one, which its exit code says, is put into the queue again, and goes on.
train() {
    local ranks=$1 file=$2 code=0 ending=TERM kept=${2%.h5}.checkpoints folder scratch words
    shift 2
    if [[ -n ${EVERY:-} ]]; then
        ending=USR1
        set -- "$@" --every "$EVERY" "$(has_checkpoints "$kept" && echo --resume || echo --checkpoint)" "$kept"
    fi
    mkdir -p "$SCRATCH" "$(dirname "$file")"
    folder=$(mktemp -d "$SCRATCH/grsgd-$SLURM_JOB_ID-XXXXXX")  # others may write there, but must not know the name
    scratch=$folder/$(basename "$file")
    words=$(mktemp -d "$SCRATCH/grsgd-words-XXXXXX")  # the rank that saves the run leaves word that it is whole
    export GRSGD_WORDS=$words
    choose_launcher
    echo "$(date '+%F %T'): $ranks ranks by $LAUNCHER on $SLURM_JOB_NODELIST, start ${SLURM_RESTART_COUNT:-0}: $*"
    stop() { [[ $1 == TERM ]] || end_launch "$ending"; }  # SIGTERM is from Slurm, for all processes of the job
    attend launch "$ranks" python -P -m grsgd train "$@" --out "$scratch" || code=$?
    if ((code == 0)) && ! compgen -G "$words/whole-*" > /dev/null; then
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
        echo "$file cannot be written: the run file stays on $(uname -n), $scratch" >&2
        ((code)) || code=1
    fi
    if ((code == CHECKPOINTED)) && [[ $signal == USR1 ]]; then
        scontrol requeue "$SLURM_JOB_ID"
    elif ((code == 0)) && [[ -n ${EVERY:-} ]]; then
        rm -rf "$kept"
    fi
    return "$code"
}
