"""Models of the server: their registry."""
