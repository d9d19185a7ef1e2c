"""What a raw column becomes: the terms of its basis."""
