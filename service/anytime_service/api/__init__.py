"""Ways by which an open prediction is reached; each translates its messages to events, and answers back."""
