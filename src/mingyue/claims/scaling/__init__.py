"""Why dot products are divided by √d_k."""
