"""How large batches are computed in bounded memory: blocks, recomputation, max-plus products, micro-batches."""
