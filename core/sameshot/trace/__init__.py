"""One trace file: verify, compress, hand out decoded events."""
