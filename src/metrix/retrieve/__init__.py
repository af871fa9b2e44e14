"""From images or vectors to an index, and from queries to their neighbours in it."""
