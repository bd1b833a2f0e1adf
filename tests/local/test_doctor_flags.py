"""Which interpreters can never run the hook, as `sameshot doctor` reads it from their command lines."""

from __future__ import annotations

import pytest

from sameshot.local.doctor import interpreter_flags


@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("python train.py", ""),
        ("python -I train.py", "I"),
        ("python -uES train.py", "uES"),
        ("python -W ignore -E train.py", "E"),
        ("python -X dev -I train.py", "I"),
        ("python -WIgnore train.py -S", ""),
        ("python -u -m train -E", "u"),
        ("python -c pass -S", ""),
        ("python --check-hash-based-pycs never -S train.py", "S"),
    ],
)
def test_only_the_interpreters_own_flags_count(command: str, flags: str) -> None:
    assert interpreter_flags(command.split()) == set(flags)
