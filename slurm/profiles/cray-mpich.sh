# Cray MPICH on HPE Cray EX (Slingshot). Build mpi4py with Cray MPICH:
#     module load cray-mpich; MPICC="cc -shared" pip install --no-binary=mpi4py --force-reinstall mpi4py
LAUNCHER=${LAUNCHER:-srun}  # there is no mpiexec under Slurm
SRUN_MPI=${SRUN_MPI:-cray_shasta}
# Messages from GPU memory need both of the following lines. With the first line alone, Cray MPICH ends a job: "GTL
# library is not linked".
# export MPICH_GPU_SUPPORT_ENABLED=1
# export LD_PRELOAD=$CRAY_MPICH_DIR/../../../gtl/lib/libmpi_gtl_cuda.so
export MPICH_GPU_SUPPORT_ENABLED=${MPICH_GPU_SUPPORT_ENABLED:-0}
