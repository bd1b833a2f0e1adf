"""Which rank is late, and what it did meanwhile.

At every matched synchronisation the last arriver makes the others wait. On a busy machine somebody is always last, by
chance, so one bad moment proves nothing. A rank is named if it is late *step after step*, in any group:

    waited(r, s)   = time that rank r waited for others during step s (union over its collectives); of a device's
                     waiting, what nothing else ran beside for longer than on the last arriver (`Arrivals.lost`)
    lateness(r, s) = the typical rank's waited(·, s) - waited(r, s)       typical: the upper median over ranks

    named  ⇔  at least 5 steps were matched
              and median over s of lateness(r, s) ≥ threshold
              and lateness(r, s) ≥ threshold / 2 in at least 4 of 5 steps
              and by more than chance makes of equal ranks in so few steps, over all ranks tested (see `chance`)
              and its starts, where one clock tells, don't contradict that it came last (see `starts`)
              and one part of its main thread explains it (gloo; see `waiting.cause`)
              and it was not itself kept waiting in another group: then whoever it waited for is named, if that can be
                  found (GPUs)

    threshold = max(share of the median step, 3 × noise, floor)
    share     = 20 % for gloo, 5 % for NCCL
    noise     = the other ranks' own ups and downs of lateness from step to step (median absolute deviation; of two
                ranks there is no other, and only `chance` tells)
    floor     = 8 ms for gloo, where the operating system's scheduler delays threads by milliseconds, 0.5 ms for NCCL

`evidence` is lateness per rank and step, `steady` and `moment` are the two ways to be named, `chance` and `starts` what
stands against it, `groups` brings several groups together, `gaps` tells who was not compared, `judge` decides.

Confidence is high only if the median is twice the threshold in 9 of 10 steps, over 10 steps or more that the traces
mark without doubt, in a whole group that the trace records, and so far beyond chance that in 9,999 of 10,000 jobs of
equal ranks nobody at all would be.

Nobody is late: only if nobody came near being named and all groups are whole. A rank that was not compared may be the
one that all wait for; a rank that chance, starts, its main thread or another group leave in doubt may be late. Then the
verdict is unknown, and says why.

The typical rank is the upper median, so up to half of the ranks may be late together and are all named.

Where fewer than 5 steps could be matched (or none are known), a device job's single most expensive moment is named, if
all ranks of the group were compared, the others waited at least 5 % of the window for it (and the floor), it makes up
at least half of all waiting, starts by one clock don't contradict it, and the rank was late in each of the few steps
that there are (or came late into the window); where no steps are known, four times the most expensive moment of any
other rank instead. Where it came about because of what another group did, and whose fault that was is not known, nobody
is named. The sentence says that it rests on one collective; the confidence is medium at most, and low where the cause
or the steps are not known.

Measured with four gloo ranks on two cores, from idle to a load of 14 (60 captures without, 34 with a planted delay of
30 ms per step): a planted rank reached at least 1.4 thresholds, in at least 0.83 of the steps, and its untraced time
exceeded its peers' by 29 to 35 ms, at least 0.63 of its lateness. An innocent rank that the scheduler starved for the
whole window reached 1.6 thresholds in 0.85 of the steps, but no part of it explained more than 0.31 of that.

Of 926 simulated jobs without a slow rank (2 to 512 ranks, 5 to 30 steps, exponential delays of 2 to 20 ms per rank and
step; GPUs and gloo) one named a rank, with medium confidence, and none with high confidence. Without `chance` 100 do, 3
of them with high confidence.
"""

from __future__ import annotations

from sameshot.analysis.late.evidence import Evidence, gather
from sameshot.analysis.late.judge import judge

__all__ = ["Evidence", "gather", "judge"]
