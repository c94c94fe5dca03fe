"""Decentralised, asynchronous and coded distributed SGD over MPI."""

__version__ = "0.2.0"


def __getattr__(name: str):
    """The public names, imported when they are first used: reading a run file needs neither torch nor MPI."""
    if name in ("load_run", "Run"):
        from grsgd.runs import run_file as module
    elif name in ("distribute", "shard"):
        from grsgd.own_loop import distributed as module
    elif name == "load_model":
        from grsgd.training import loading as module
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(module, name)


__all__ = ["distribute", "load_model", "load_run", "shard"]
