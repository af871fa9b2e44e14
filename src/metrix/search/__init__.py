"""Find the nearest embeddings: an index in memory or in a folder, on faiss or Milvus.

Index                           build, create, open, search, get, add, update, delete, merge
Hits                            what a search found: rows, similarities, ids and columns
Items                           vectors with ids and columns; Fingerprint: which model made them
nearest_others                  the nearest rows of an array or a store, without the query's own
count_pairs(...).threshold      the similarity above which two images are the same thing
find_duplicates, find_suspects  what an index shows about its own data
"""

from metrix.search.description import Description, Fingerprint, Threshold
from metrix.search.duplicates import Duplicates, choose_duplicate_threshold, find_duplicates
from metrix.search.hits import Hits
from metrix.search.index import Index
from metrix.search.items import LABEL, Items
from metrix.search.nearest import nearest_others
from metrix.search.pairs import Pairs, count_pairs
from metrix.search.settings import Settings
from metrix.search.stores import KINDS, STORES, SUGGEST_PAST, Neighbours, Store
from metrix.search.suspects import Suspect, SuspectNeighbour, find_suspects

__all__ = [
    "KINDS",
    "LABEL",
    "STORES",
    "SUGGEST_PAST",
    "Description",
    "Duplicates",
    "Fingerprint",
    "Hits",
    "Index",
    "Items",
    "Neighbours",
    "Pairs",
    "Settings",
    "Store",
    "Suspect",
    "SuspectNeighbour",
    "Threshold",
    "choose_duplicate_threshold",
    "count_pairs",
    "find_duplicates",
    "find_suspects",
    "nearest_others",
]
