"""``grsgd doctor``: examines hosts, launcher and MPI library of a job."""

from pathlib import Path


def doctor(options) -> int:
    """find faults that would break or slow a training here, alone or on ranks: mpiexec -n 4 grsgd doctor"""
    from grsgd.doctor.examination import Examination
    from grsgd.doctor.findings import in_json, in_text

    form = in_json if options.json else in_text
    examination = Examination(Path(options.output), lambda title, findings: print(form(title, findings), flush=True))
    return examination.run()
