"""Machines that attack metrix and count what breaks: bad input (fuzz), killed processes (chaos), long work (soak)."""
