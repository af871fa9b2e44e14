"""Pages and figures from measured runs: `report` composes the page, `page` and `figures` are its building blocks."""
