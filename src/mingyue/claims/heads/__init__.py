"""Why there are many heads, and what each of them reads."""
