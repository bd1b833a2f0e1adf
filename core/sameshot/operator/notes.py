"""What was found out about jobs and is nowhere written: forgotten in a restart, and found out again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sameshot.operator.conditions import Trouble
from sameshot.operator.decide import Heard
from sameshot.operator.jobs import Looked
from sameshot.operator.objects import Kind
from sameshot.operator.tried import NEVER, Tried


@dataclass
class Notes:
    """What was found out about one attempt, and would be again. Times are epoch seconds."""

    heard: Heard | None = None
    trouble: Trouble | None = None
    life: str = ""  # whose answers these are
    answered: bool = False  # whether it ever gave one
    reachable: bool | None = None
    unreachable_why: str = ""
    alone_since: float | None = None
    gone_for_sure: bool = False
    deleted_at: float | None = None
    deletions: int = 0
    counted: tuple[str, frozenset[str]] | None = None  # for which process and which pods workers were counted
    describe_at: float | None = None
    described_at: float = -math.inf
    describes: int = 0
    expected: int | None = None
    expected_at: float = -math.inf  # when that was last counted
    unsure_since: float | None = None  # since when of none of its pods it is sure that this is their job
    registered: int | None = None
    world_size: int | None = None
    version: str = ""
    pods: Tried = NEVER
    mends: Tried = NEVER
    written: dict[Kind, str] = field(default_factory=dict)  # marks of what was made or mended last
    going_since: tuple[str, float] | None = None  # the life of a pod, and when it was first seen to be deleted
    forced_at: float = -math.inf
    lost_node: str = ""  # where the pod was that was removed by force
    begun: bool = False  # whether the above was taken from the status that an earlier operator wrote


@dataclass
class JobNotes:
    looked: Looked | None = None
    looked_at: float | None = None
    looks: int = 0
    moved: bool = False  # its pods were found to be another job's
    attempts: dict[int, Notes] = field(default_factory=dict)
