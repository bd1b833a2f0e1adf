"""Arming: what goes into a workload at its creation, so that captures can be asked for while it runs.

    labels.py     the names that are written into pods
    values.py     options, the job's place, fields of the downward API
    options.py    what a pod says about arming in its annotations
    template.py   one pod template in, the armed one out, and back; the parts of it:
      trainer.py      which container trains
      command.py      the words before its command, and what a command line tells
      pythonpath.py   how the hook comes first on the Python path
      environment.py  the variables that the hook reads
      volumes.py      the two volumes, and what may stand in their way
      workers.py      how many workers a container starts, and what may keep them from becoming ranks
      record.py       what was added, kept in an annotation
      takeout.py      what was added, taken out again
    kinds.py      where the kinds of workloads keep their pod templates, and what they tell about the job
    hookmap.py    the ConfigMap with the hook
    quantity.py   quantities as Kubernetes writes them
    files.py      a whole file of objects, armed or disarmed
      documents.py    YAML or JSON as text, and the same text with objects changed
      yamlstream.py   YAML, of these; by yamlparts.py (everything with its place) and yamltext.py (changed in place)

Pure but for `hookmap`, which reads the hook's files: nothing here talks to an API server.
"""

from __future__ import annotations

from sameshot.arm.options import options_in
from sameshot.arm.record import ArmedRecord, record_of
from sameshot.arm.template import Armed, arm_template, disarm_template
from sameshot.arm.values import ArmOptions, JobPlace, NotArmable

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
