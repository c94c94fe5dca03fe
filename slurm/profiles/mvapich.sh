# MVAPICH2, on InfiniBand. Build mpi4py with it:
#     module load mvapich2; pip install --no-binary=mpi4py --force-reinstall mpi4py
SRUN_MPI=${SRUN_MPI:-pmi2}
# mpi4py asks for calls from several threads, which MVAPICH2 allows only if it does not bind ranks itself.
export MV2_ENABLE_AFFINITY=${MV2_ENABLE_AFFINITY:-0}
# GPU memory: MVAPICH2-GDR with this line.
# export MV2_USE_CUDA=1
