"""Routes of the service; each translates its messages to events of open predictions, and sends their answers."""
