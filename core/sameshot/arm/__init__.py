"""Arming: what goes into a workload at its creation, so that captures can be asked for while it runs.

    labels.py     the names that are written into pods
    template.py   one pod template in, the armed one out, and back
    trainer.py    which container trains
    command.py    how the hook comes first on the Python path, and what a command line tells
    volumes.py    what may stand in the way of our volumes
    record.py     what was added, kept in an annotation
    kinds.py      where the kinds of workloads keep their pod templates, and what they tell about the job
    hookmap.py    the ConfigMap with the hook

Pure but for `hookmap`, which reads the hook's files: nothing here talks to an API server.
"""

from __future__ import annotations

from sameshot.arm.record import ArmedRecord, record_of
from sameshot.arm.template import (
    Armed,
    ArmOptions,
    JobPlace,
    NotArmable,
    arm_template,
    disarm_template,
    options_in,
)

__all__ = [
    "ArmOptions",
    "Armed",
    "ArmedRecord",
    "JobPlace",
    "NotArmable",
    "arm_template",
    "disarm_template",
    "options_in",
    "record_of",
]
