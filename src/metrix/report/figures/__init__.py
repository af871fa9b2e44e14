"""Figures of results: curves, bars, maps of embeddings, galleries of what a search found.

Each gives a `Figure` or `Gallery` of `metrix.report.page`: the drawing, words for who cannot see it, and the
numbers behind it.
"""
