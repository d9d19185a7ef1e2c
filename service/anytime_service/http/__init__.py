"""HTTP requests and responses: exchange, problems, request options, authentication."""
