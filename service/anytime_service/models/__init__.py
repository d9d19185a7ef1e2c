"""The models that a server answers from."""
