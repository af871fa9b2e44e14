"""The paper: every loss, every mixup, and nothing else than torch."""
