"""Command ``grsgd doctor``, which examines the hosts, launcher and MPI library of a job."""

from pathlib import Path


def doctor(options) -> int:
    """find faults that would break or slow a training on this host, or in a job: mpiexec -n 4 grsgd doctor"""
    from grsgd.doctor.examination import Examination
    from grsgd.doctor.findings import in_json, in_text

    return Examination(Path(options.output), in_json if options.json else in_text).run()
