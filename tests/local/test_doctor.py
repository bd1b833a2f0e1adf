"""What `sameshot doctor` concludes from command lines and from daemons that do not answer."""

from __future__ import annotations

import pytest

from sameshot.local.doctor import Verdict, check_dynolog, interpreter_flags
from sameshot.local.services import free_port


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


def test_a_dynolog_that_does_not_answer_is_a_problem_with_its_address() -> None:
    address = f"127.0.0.1:{free_port()}"
    finding = check_dynolog(address)
    assert finding.verdict is Verdict.PROBLEM
    assert address in finding.detail
