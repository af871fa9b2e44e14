"""Find the nearest embeddings: an index in memory or in a folder, on faiss or Milvus.

Index                           build, create, open, search, get, add, update, delete, merge
Items                           vectors with ids and columns; Fingerprint: which model made them
count_pairs(...).threshold      the similarity above which two images are the same thing
find_duplicates, find_suspects  what an index shows about its own data
"""

from metrix.search.cleaning import Duplicates, Suspect, find_duplicates, find_suspects
from metrix.search.description import Description, Fingerprint, Threshold
from metrix.search.faiss_graph import Settings
from metrix.search.index import Index
from metrix.search.items import LABEL, Items
from metrix.search.pairs import Pairs, count_pairs
from metrix.search.stores import KINDS, STORES, SUGGEST_PAST, Found, Neighbours, Store

__all__ = [
    "KINDS",
    "LABEL",
    "STORES",
    "SUGGEST_PAST",
    "Description",
    "Duplicates",
    "Fingerprint",
    "Found",
    "Index",
    "Items",
    "Neighbours",
    "Pairs",
    "Settings",
    "Store",
    "Suspect",
    "Threshold",
    "count_pairs",
    "find_duplicates",
    "find_suspects",
]
