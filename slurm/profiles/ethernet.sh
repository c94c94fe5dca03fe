# Plain Ethernet with TCP: the Open MPI of `make setup` is enough.
SRUN_MPI=${SRUN_MPI:-pmix}
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1} OMPI_MCA_btl=${OMPI_MCA_btl:-tcp,sm,self}
# On nodes with several networks, name the network for the messages of MPI:
# export OMPI_MCA_btl_tcp_if_include=10.0.0.0/16
