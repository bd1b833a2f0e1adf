"""How anything outside talks to a job's coordinator."""
