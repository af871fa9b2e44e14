"""The explorer page: what it shows of runs and indexes, and its static files."""
