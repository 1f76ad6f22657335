"""Reward functions that are chosen by name: answers, patterns, JSON, length, repetition, language, code and judges."""
