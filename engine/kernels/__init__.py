"""Tensor operations. `reference` is their specification, `ops` is what the model calls."""
