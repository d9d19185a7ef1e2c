"""Open predictions and their deadlines, independent of the transport."""
