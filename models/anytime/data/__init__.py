"""Tables whose columns have a meaning: features, target, query and weights."""
