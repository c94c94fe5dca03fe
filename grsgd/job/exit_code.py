"""Exit code that a script has given to ``sys.exit``, known while Python still calls the functions that were registered
with ``atexit``."""

import builtins
import sys
import threading

_noted = [0]
_plain_exit = sys.exit


class ScriptExit(SystemExit):
    """SystemExit of ``sys.exit``, which notes its code when Python itself reads the code, at the end of the script.

    An exit that the script catches is not noted.
    """

    @property
    def code(self):
        value = self.args[0] if self.args else None
        if sys._getframe().f_back is None:  # no Python code reads the attribute
            _noted[0] = code_of(value)
        return value


ScriptExit.__name__ = SystemExit.__name__  # which tracebacks and messages show


def note():
    """Note from now on the code that the script gives to ``sys.exit``; Python itself tells no function this code.

    A script that raises SystemExit itself, calls ``exit``, or has imported ``sys.exit`` by name, ends with the code 0
    as far as `noted` knows, unless `note_every_exit` is called.
    """
    sys.exit = exit_with


def note_every_exit():
    """Note the code also if the script raises SystemExit itself, calls ``exit``, or has imported ``sys.exit`` by name.

    For this the built-in name SystemExit and the names of ``sys.exit`` in all modules lead to this module.
    """
    note()
    if builtins.SystemExit is ScriptExit:
        return
    builtins.SystemExit = ScriptExit
    before, plain = threading.excepthook, _plain_exit  # the loop replaces the name in this module, too
    threading.excepthook = lambda caught: None if caught.exc_type is ScriptExit else before(caught)
    for module in list(sys.modules.values()):
        names = vars(module) if isinstance(module, type(sys)) else {}
        for name in [name for name, value in names.items() if value is plain]:
            names[name] = exit_with


def exit_with(code=None, /):
    """Raise SystemExit, as ``sys.exit`` does; threads end silently by the built-in SystemExit alone."""
    is_main = threading.current_thread() is threading.main_thread()
    raise (ScriptExit if is_main else builtins.SystemExit)(*() if code is None else (code,))


def noted() -> int:
    """Return the exit code, from 0 to 255; 0 if the script has not ended by ``sys.exit``."""
    return _noted[0]


def code_of(value) -> int:
    """Return the exit code, from 0 to 255, of a SystemExit whose attribute ``code`` is ``value``."""
    if value is None:
        return 0
    return value & 0xFF if isinstance(value, int) else 1
