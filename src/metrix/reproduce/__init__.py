"""The paper's tables and figures again: its numbers as data, a grid of runs, and both side by side."""
