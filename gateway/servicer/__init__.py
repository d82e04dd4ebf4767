"""The tenants' services: generation and models. Knows the wire and the tenants' text, never the store."""
