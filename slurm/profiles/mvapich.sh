# MVAPICH2, on InfiniBand. Build mpi4py with MVAPICH2:
#     module load mvapich2; pip install --no-binary=mpi4py --force-reinstall mpi4py
SRUN_MPI=${SRUN_MPI:-pmi2}
# mpi4py asks for calls from several threads, which MVAPICH2 allows only if MVAPICH2 does not bind ranks itself.
export MV2_ENABLE_AFFINITY=${MV2_ENABLE_AFFINITY:-0}
# Messages from GPU memory need MVAPICH2-GDR and the following line.
# export MV2_USE_CUDA=1
