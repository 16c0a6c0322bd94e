"""Where vectors come from, and how a token knows its place."""
