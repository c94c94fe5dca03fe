"""Exit code of this process's script, known while Python still calls the functions that were registered with
``atexit``."""

import ctypes
import gc
import sys
from functools import cache

_noted = [0]


@cache
def note():
    """Note from now on the exit code that the script ends with: by ``sys.exit(3)``, ``exit(3)`` or ``raise
    SystemExit(3)``.

    Python tells no function this code. But Python reads the attribute ``code`` of an uncaught SystemExit, so `note`
    puts a property in place of this attribute. Reads by Python code get the same value as before. Python 3.11 makes no
    SystemExit object for its own ``sys.exit``, so `note` replaces that function, too; a script that has imported the
    function before (``from sys import exit``) then ends with an unknown code.
    """
    attributes = gc.get_referents(SystemExit.__dict__)[0]
    own = attributes["code"]

    def read(error: SystemExit):
        value = own.__get__(error)
        if sys._getframe().f_back is None:  # Python itself reads the code, at the end of the script
            _noted[0] = code_of(value)
        return value

    attributes["code"] = property(read, lambda error, value: own.__set__(error, value))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(SystemExit))
    sys.exit = exit_with


def exit_with(code=None, /):
    """Raise SystemExit, as ``sys.exit`` does."""
    raise SystemExit(code)


def noted() -> int:
    """Return the exit code, from 0 to 255; 0 if the script has not ended by SystemExit."""
    return _noted[0]


def code_of(value) -> int:
    """Return the exit code, from 0 to 255, of a SystemExit whose attribute ``code`` is ``value``."""
    if value is None:
        return 0
    return value & 0xFF if isinstance(value, int) else 1
