"""Which collective is the same one on all ranks.

Groups are what the trace records (name and ranks). Where it records none, streams of the same order on the device are
compared, and only those whose collectives overlap in time on all ranks are taken for one group.

The clocks of two hosts are never trusted before they were measured. Each pair of hosts is measured once, on the first
group that is matched by number or by rhythm; other groups of these hosts are then matched under the measured offset.
Only where no group tells anything the clocks themselves are assumed to agree, and the match says so.

`match` puts it together: `groups` says which streams of the ranks are one group's, `align` pairs the collectives of two
ranks (`fit` under one offset, `search` over all), `hosts` knows who shares a clock, `near` which of several unnamed
groups a rank lies near to. `matched` is what comes out.
"""
