"""Techniques that make models faster without changing what they compute, one file each."""
