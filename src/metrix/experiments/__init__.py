"""Small compositions of everything below: the demo, all methods on one bench, a run trained only once."""
