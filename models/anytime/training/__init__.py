"""Training: from moments or rows to a model."""
