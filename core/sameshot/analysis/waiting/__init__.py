"""Who came last to each matched collective, how long the others waited, whose fault that was, and what it cost.

    wait_i   = dur_i - min_j dur_j      the rank with the shortest duration came last, the others are its victims
    transfer = min_j dur_j              what the collective itself takes

Both need no clocks. They hold only where durations tell: all_reduce, all_gather, reduce_scatter and barrier always; an
all-to-all (or a SendRecv kernel of which nothing else is recorded: that is how NCCL runs one) only if every rank of the
group takes part and all leave it together, as with equal parts. Broadcast, reduce, gather, scatter and point-to-point:
ranks may leave early, a wait there is a dependency (a pipeline bubble), and nobody is blamed.

`gather` makes the `arrivals` of every group, from the collectives that are `telling`; `cause` says why a rank came last
and `follow` whose fault that was. `stragglers`, `collectives`, `moments` and `bandwidth` are what is made of them.
"""
