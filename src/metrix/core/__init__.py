"""The paper: the generic loss, Table 1, mixing pairs, mixup types, and the objectives built from them.

A step goes through `objective` or `metrix`, `loss` (which anchors, positives and negatives there are: `sets`), `pairs`
and `factors` (which examples are mixed, with which λ), `mixup` (how mixed examples are embedded), `mixed` and
`closed_form` (their similarities to the anchors), and ends in `generic`, eq. loss-labels. It needs torch and NumPy.
"""
