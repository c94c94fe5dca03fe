"""Record of the exit code that a script has given to ``sys.exit``, for functions that Python calls through
``atexit``."""

import builtins
import sys
import threading

_noted = [0]
_plain_exit = sys.exit


class ScriptExit(SystemExit):
    """SystemExit that ``sys.exit`` raises, which records its exit code when Python itself reads the code at the end of
    the script.

    The exit code of a SystemExit that the script catches is not recorded.
    """

    @property
    def code(self):
        value = self.args[0] if self.args else None
        # no Python code calls this property, so the interpreter itself reads ``code`` at the end
        if sys._getframe().f_back is None:
            _noted[0] = code_of(value)
        return value


ScriptExit.__name__ = SystemExit.__name__  # ScriptExit shows the name "SystemExit" in tracebacks and messages


def note():
    """Record, from now on, the exit code that the script gives to ``sys.exit``. Python itself does not pass this code
    to functions that are called through ``atexit``.

    If a script raises SystemExit itself, calls ``exit``, or has imported ``sys.exit`` by name, `noted` returns 0 unless
    `note_every_exit` was called.
    """
    sys.exit = exit_with


def note_every_exit():
    """Record the exit code of every exit, even if the script raises SystemExit itself, calls ``exit``, or has imported
    ``sys.exit`` by name.

    The function replaces the built-in name SystemExit, and the names of ``sys.exit`` in all modules, by objects of this
    module.
    """
    note()
    if builtins.SystemExit is ScriptExit:
        return
    builtins.SystemExit = ScriptExit
    # ``plain`` keeps the value, because the loop below also replaces ``_plain_exit``
    before, plain = threading.excepthook, _plain_exit
    threading.excepthook = lambda caught: None if caught.exc_type is ScriptExit else before(caught)
    for module in list(sys.modules.values()):
        names = vars(module) if isinstance(module, type(sys)) else {}
        for name in [name for name, value in names.items() if value is plain]:
            names[name] = exit_with


def exit_with(code=None, /):
    """Raise SystemExit, as ``sys.exit`` does. A thread other than the main thread gets the built-in SystemExit, because
    only this class ends a thread without a message."""
    is_main = threading.current_thread() is threading.main_thread()
    raise (ScriptExit if is_main else builtins.SystemExit)(*() if code is None else (code,))


def noted() -> int:
    """Return the recorded exit code, from 0 to 255; 0 if the script has not ended by ``sys.exit``."""
    return _noted[0]


def code_of(value) -> int:
    """Return the exit code, from 0 to 255, of a SystemExit whose attribute ``code`` is ``value``."""
    if value is None:
        return 0
    return value & 0xFF if isinstance(value, int) else 1
