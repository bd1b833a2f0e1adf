"""One per job attempt: freeze, fan-out, poll, converge, publish."""
