from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyGrsgd(PythonPackage):
    """Decentralised, asynchronous and coded distributed SGD over MPI."""

    pypi = "grsgd/grsgd-0.2.0.tar.gz"

    license("Apache-2.0 AND CC-BY-SA-3.0")

    # `spack checksum py-grsgd` adds the SHA-256 of the sdist that was released.
    version("0.2.0")

    depends_on("python@3.11:3.13", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")

    with default_args(type=("build", "run")):
        depends_on("py-h5py@3.10:")
        depends_on("py-matplotlib@3.8:")
        depends_on("py-mpi4py@4.0:")
        depends_on("py-numba@0.61:")
        depends_on("py-numpy@1.26:")
        depends_on("py-pillow@10:")
        depends_on("py-pydantic@2.7:")
        depends_on("py-shtab@1.7:")
        depends_on("py-simpy@4.1:")
        depends_on("py-tabulate@0.9:")
        depends_on("py-tomli-w@1.0:")
        depends_on("py-torch@2.4:")
