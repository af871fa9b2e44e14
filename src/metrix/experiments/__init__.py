"""Experiments on top of training: the demo, all methods on one dataset, and runs that are trained only once."""
