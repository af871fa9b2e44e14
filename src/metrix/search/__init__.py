"""Find the nearest embeddings: an index in this process, exact or approximate."""

from metrix.search.index import Found, Index

__all__ = ["Found", "Index"]
