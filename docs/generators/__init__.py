"""Generators of the documentation's reference pages."""
