"""Models of the server: registry and descriptions."""
