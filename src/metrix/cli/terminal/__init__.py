"""Output for a terminal: tables and progress displays."""
