"""This machine: its devices, memory and caches, and what `metrix doctor` says of it."""
