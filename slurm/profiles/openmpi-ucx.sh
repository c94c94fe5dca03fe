# Open MPI with UCX, on InfiniBand or another network with RDMA: the cluster's module, not the Open MPI from PyPI.
SRUN_MPI=${SRUN_MPI:-pmix}
# UCX instead of TCP; without UCX the job ends at its start, so that it does not use a slower network in silence.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ucx}
# GPU memory: the module must be built with CUDA. `ompi_info --parsable --all | grep mpi_built_with_cuda_support` says so.
