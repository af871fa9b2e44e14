"""A finished run: opened, embedded, measured, analysed, compared."""
