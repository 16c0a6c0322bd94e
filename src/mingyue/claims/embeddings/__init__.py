"""Claims about embeddings and positions."""
