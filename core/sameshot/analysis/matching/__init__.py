"""Which collective is the same one on all ranks."""
