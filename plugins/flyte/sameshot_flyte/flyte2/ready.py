"""The tasks as they come, in an environment called `sameshot`: for those who have nothing to say about it.

Not loaded by `tasks`, so that whoever makes their own has only those: `flyte deploy --all` deploys all that is loaded.
"""

from __future__ import annotations

from sameshot_flyte.flyte2.workflow import tasks

READY = tasks(module=__name__)
env = READY.env
capture = READY.capture
analyze_rank = READY.analyze_rank
reduce = READY.reduce
analyze = READY.analyze
compare = READY.compare
profile_job = READY.profile_job
