# Open MPI with UCX, on InfiniBand or another network with RDMA: the cluster's module, not the Open MPI from PyPI.
SRUN_MPI=${SRUN_MPI:-pmix}
# Use UCX instead of TCP. Without UCX, the job ends at its start, so that no job uses a slower network unnoticed.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ucx}
# Messages from GPU memory need a module built with CUDA. To check the module:
#     ompi_info --parsable --all | grep mpi_built_with_cuda_support
