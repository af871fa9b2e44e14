"""The loss of a batch that is divided among several processes."""
