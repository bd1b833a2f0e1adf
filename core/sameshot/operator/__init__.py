"""Keeps one coordinator for each attempt of an armed job: the lifecycle operator.

    sources ─ following, watching (kopf), run's sweep ─→ seen, armed ─→ queue ─→ worlds ─→ decide (pure) ─→ keeper
       ↑                                                                                                      │
       └──────────────────────────────────────────────────────────────────────────── writing, calls ←────────┘

What is told goes into `seen` and, by jobs, into `armed` and `known`; whatever touches a job puts its key into the
`queue`. `worlds` says how it is about one attempt, `decide` what that needs now, and the `keeper` does it and asks
again until nothing is left to do. Nothing is kept that could not be seen again: a restart loses nothing. Only what is
ours is ever written; of users' objects everything is only read.
"""
