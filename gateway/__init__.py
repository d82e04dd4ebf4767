"""The gateway. Knows tenants and text, never tensors."""
