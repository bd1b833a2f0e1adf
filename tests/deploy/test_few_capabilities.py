from __future__ import annotations

import os
import subprocess

import pytest
from bounded import bounded_argv


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities that can be dropped")
def test_a_program_has_the_capabilities_that_are_named_and_no_others() -> None:
    done = subprocess.run(
        bounded_argv(("sys_chroot", "dac_override"), "cat", "/proc/self/status"), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert int(facts["CapEff"], 16) == int(facts["CapPrm"], 16) == int(facts["CapBnd"], 16) == (1 << 18) | (1 << 1)
