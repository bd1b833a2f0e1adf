"""The face for flytekit 1.16."""
