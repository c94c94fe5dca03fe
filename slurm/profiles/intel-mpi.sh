# Intel MPI. The wheel of mpi4py loads it after `module load intel-mpi`, as a library with the ABI of MPICH.
LAUNCHER=${LAUNCHER:-srun}
SRUN_MPI=${SRUN_MPI:-pmi2}
if [[ $LAUNCHER == srun ]]; then  # with this library of Slurm srun connects the ranks; mpiexec must not have the variable
    for library in /usr/lib64/libpmi2.so /usr/lib/*/libpmi2.so; do
        [[ ! -e $library ]] || export I_MPI_PMI_LIBRARY=${I_MPI_PMI_LIBRARY:-$library}
    done
fi
# The ranks are bound by Slurm or by grsgd, so Intel MPI must not bind them to other cores.
export I_MPI_PIN=${I_MPI_PIN:-0}
# GPU memory: with this line.
# export I_MPI_OFFLOAD=1
