"""Open predictions and their deadlines, without any transport."""
