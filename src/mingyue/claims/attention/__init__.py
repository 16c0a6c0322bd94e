"""What attention computes, what it costs, and what it sees."""
