"""What runs inside the training process: stdlib only, tiny, fails open."""
