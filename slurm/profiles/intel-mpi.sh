# Intel MPI. After `module load intel-mpi`, the wheel of mpi4py loads Intel MPI as a library with the ABI of MPICH.
LAUNCHER=${LAUNCHER:-srun}
SRUN_MPI=${SRUN_MPI:-pmi2}
if [[ $LAUNCHER == srun ]]; then  # srun connects the ranks by a library of Slurm; mpiexec must not have the variable
    for library in /usr/lib64/libpmi2.so /usr/lib/*/libpmi2.so; do
        [[ ! -e $library ]] || export I_MPI_PMI_LIBRARY=${I_MPI_PMI_LIBRARY:-$library}
    done
fi
# The ranks are bound by Slurm or by grsgd, so Intel MPI must not bind them to other cores.
export I_MPI_PIN=${I_MPI_PIN:-0}
# Messages from GPU memory need the following line.
# export I_MPI_OFFLOAD=1
