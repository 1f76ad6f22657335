"""Reward functions that are chosen by name: answers, patterns, JSON, length, repetition, language, code and judges."""

from __future__ import annotations

from rlcore_rewards.by_name import build_reward

__all__ = ["build_reward"]
