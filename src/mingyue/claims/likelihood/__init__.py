"""What training maximises, and what follows from it."""
