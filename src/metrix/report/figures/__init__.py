"""Figures of results: curves, bars, maps of embeddings, galleries of what a search found.

Each function returns a `Figure` or `Gallery` of `metrix.report.page`: the drawing, a description in words and the
numbers behind it.
"""
