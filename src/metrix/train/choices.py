"""The names that a configuration can choose from, for help texts and shells, which have no time to import torch.

`metrix.train.names` has the tables of what they name; a test compares the two.
"""

from __future__ import annotations

CHOICES = {
    "pool": ("avg+max", "avg", "max", "gem", "cls", "attention"),
    "loss": (
        *("contrastive", "lifted-structure", "binomial-deviance", "multi-similarity", "nca"),
        *("proxy-anchor", "proxy-nca", "proxy-nca++"),
        *("circle", "supcon", "nt-xent", "tuplet-margin", "potential-field"),
        *("normalized-softmax", "cosface", "arcface", "subcenter-arcface"),
        *("triplet", "margin", "epshn", "soft-triple", "recall-at-k"),
    ),
    "mixup_method": ("metrix", "imix", "mochi", "proxy-synthesis", "simix"),
    "mixup": ("input", "feature", "embed"),
    "pairs": ("pos-neg", "anc-neg", "pos-pos", "neg-neg"),
    "scheme": ("none", "divide-and-conquer"),
    "label_relation": ("jaccard", "any", "all"),
}
