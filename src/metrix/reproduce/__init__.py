"""Reproduce the paper's tables and figures: a grid of runs, and its results beside the numbers of the paper."""
