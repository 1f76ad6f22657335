"""Pipelines of answers with a verdict: pairs of a chosen and a rejected answer, labelled answers and labelled steps."""
