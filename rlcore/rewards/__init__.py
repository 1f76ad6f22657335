"""Call reward functions on sampled text and check the numbers that they return."""
