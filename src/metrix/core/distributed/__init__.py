"""One loss over the batches of several processes."""
