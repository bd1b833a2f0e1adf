"""Keeps one coordinator for each attempt of an armed job: the lifecycle operator."""
