"""The `sameshot` command."""
