"""What the other parts of a block are for: residual path, feed-forward, memory."""
