"""Reward functions: choose them, call them on sampled text, and check the numbers that they return."""
