"""Requests and responses: exchange, problems, options, authentication."""
