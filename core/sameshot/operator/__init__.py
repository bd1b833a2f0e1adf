"""Keeps one coordinator for each attempt of an armed job: the lifecycle operator.

    sources ─ watching (kopf), sweep ─→ world ─→ queue ─→ decide (pure) ─→ keeper ─→ writes, calls ─→ world

What is seen goes into the `world`, whatever touches a job puts its key into the `queue`, `decide` says what one attempt
needs now, and the `keeper` does it and asks again until nothing is left to do. Nothing is kept that could not be seen
again: a restart loses nothing. Only what is ours is ever written; of users' objects everything is only read.
"""
