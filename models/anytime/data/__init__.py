"""Tables with the meaning of their columns."""
