"""Runs at the start of every Python process that has this folder on its path; must cost next to nothing.

With our marker in the environment the import hook is installed. Then the next sitecustomize (the user's own or the
distribution's) runs just as it would without this folder, its errors included.
"""

import os
import sys


def _install():  # type: ignore[no-untyped-def]
    try:
        import _sameshot_import  # type: ignore[import-not-found]

        _sameshot_import.install()
    except Exception as error:  # whatever breaks here must not break the user's interpreter
        sys.stderr.write(f"sameshot: the import hook failed ({error!r:.200}); training goes on unprofiled\n")


def _chain():  # type: ignore[no-untyped-def]
    here = os.path.dirname(os.path.abspath(__file__))
    ours = sys.modules.pop(__name__, None)
    saved = sys.path[:]
    sys.path[:] = rest = [entry for entry in saved if os.path.abspath(entry) != here]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise  # site.py reports it, as it would without us
        if ours is not None:
            sys.modules[__name__] = ours  # there is no other; the import system wants to find one
    finally:
        if sys.path == rest:
            sys.path[:] = saved
        else:  # the user's sitecustomize changed the path: keep its changes
            sys.path[:0] = [entry for entry in saved if os.path.abspath(entry) == here]


if os.environ.get("SAMESHOT_ARMED") == "1":
    _install()  # type: ignore[no-untyped-call]
_chain()  # type: ignore[no-untyped-call]
