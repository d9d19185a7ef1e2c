"""Sessions: groups that several requests share, in memory or in Redis."""
