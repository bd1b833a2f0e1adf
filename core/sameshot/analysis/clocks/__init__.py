"""How far apart the clocks of the hosts are, measured at the ends of symmetric collectives.

A symmetric collective ends on all its ranks at nearly the same moment. So in the frame of one group g, with T_k the
typical end of its k-th collective,

    end_hk = T_k + (o_h - c_g) + (r_h - q_g) · (T_k - M) + noise         h a host, k a collective of g

where o_h and r_h are how far a host's clock is ahead at the moment M and how fast it gains, and c_g, q_g are the
frame's own. A robust line over k gives o_h - c_g and r_h - q_g for every host of the group: the edges of a graph whose
nodes are hosts and groups (`graph`). Inside a connected component the offsets follow by least squares over all
edges; what cycles leave over is the check. Between components nothing is known: such hosts are *unaligned*.

Collectives inside one host say nothing about another, and matches that assumed that clocks agree are not used: they
can't measure what they assume. A drift is told only where it is resolved, its standard error times the window being
below the residual in every group on the way to the reference.

    expected error = 3 × the standard error along the best path to the reference: of the offset, and of the drift over
                     the farthest part of the window
                     + the residual: ends may differ systematically by as much as they scatter
                     + what cycles through the host leave over
                     + what a drift that is too small to be resolved may change until the end of the window
                     + how far those points lie off the line, if they are too many for outliers: then a clock was set
                       inside the window, or changed its rate
"""

from __future__ import annotations

from sameshot.analysis.clocks.measure import measure, to_reference

__all__ = ["measure", "to_reference"]
