# grsgd, and Open MPI from PyPI: enough for the ranks of one host.
#
#   docker build -t grsgd .
#   docker run --rm --shm-size=1g grsgd                                      # grsgd demo
#   docker run --rm --shm-size=1g -v "$PWD:/work" grsgd run -n 4 my.toml     # /work must be writable for user 1000
#
# Arguments of the build:
#   EXTRAS=mpi,cuda13   CuPy as well, for GPUs; EXTRAS= (empty): no MPI, for a host whose MPI is mounted into the container
#   TORCH_INDEX=...     the address of torch's index of CPU builds, for an image without CUDA
#
# --target kubernetes adds the SSH server by which packaging/kubernetes/mpijob.yaml starts ranks in other pods.

FROM python:3.13-slim AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim AS grsgd
ARG EXTRAS=mpi
ARG TORCH_INDEX=
COPY constraints.txt /opt/
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --constraint /opt/constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} \
    "$(echo /wheels/grsgd-*.whl)${EXTRAS:+[$EXTRAS]}" \
    && useradd --create-home --uid 1000 --password '*' grsgd \
    && install --directory --owner grsgd /work
USER 1000
WORKDIR /work
ENTRYPOINT ["grsgd"]
CMD ["demo"]

FROM grsgd AS kubernetes
USER 0
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_*
COPY packaging/kubernetes/ssh_config /etc/ssh/ssh_config.d/grsgd.conf
COPY packaging/kubernetes/sshd_config /etc/ssh/grsgd_sshd_config
USER 1000
ENTRYPOINT []
CMD ["/usr/sbin/sshd", "-De", "-f", "/etc/ssh/grsgd_sshd_config"]

FROM grsgd
