"""`make demo`: a real two-node job on one machine, captured twice while it runs."""
