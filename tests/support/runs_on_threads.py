"""Function that lets tests call `grsgd.job.run` on ranks that are threads, which cannot handle signals."""

from contextlib import nullcontext
from types import SimpleNamespace

from grsgd.job import prepare
from grsgd.job import run as runs
from grsgd.training import description


def allow_threads(monkeypatch):
    """Replace the parts of a run that need the main thread of a process, or a process of its own for each rank."""

    def within(seconds, what):
        assert isinstance(seconds, float) and isinstance(what, str)
        return nullcontext()

    monkeypatch.setattr(runs, "Interruption", lambda *_: nullcontext(SimpleNamespace()))
    monkeypatch.setattr(description, "commit", lambda: "0123")
    monkeypatch.setattr(prepare.gpu, "use_threads", lambda: None)
    for module in (runs, prepare):
        monkeypatch.setattr(module, "within", within)
