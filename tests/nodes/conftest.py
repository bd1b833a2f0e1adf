"""Torch itself may crash a worker, and that is no failure of ours."""

from __future__ import annotations

import warnings
from collections.abc import Generator

import pytest
from pods import CRASHED


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """A test that failed because torch crashed is run once more, and the crash is reported (as in tests/e2e)."""
    before = len(CRASHED)
    try:
        return (yield)
    except (Exception, pytest.fail.Exception) as error:
        if len(CRASHED) == before:
            raise
        warnings.warn(f"torch crashed a worker (SIGSEGV); {pyfuncitem.name} runs again after: {error}", stacklevel=1)
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        if "tmp_path" in arguments:
            (again := arguments["tmp_path"] / "again").mkdir()
            arguments["tmp_path"] = again
        return pyfuncitem.obj(**arguments) or True
