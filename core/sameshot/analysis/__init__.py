"""Manifest in; findings and a report out."""
