"""Postgres: tables, statements and the snapshot that requests are decided on. Knows nothing of gRPC or of text."""
