"""Machines that attack metrix and count what breaks: bad input (fuzz) and killed processes (chaos)."""
