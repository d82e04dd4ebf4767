"""Turns a step's plan into one forward pass and samples from it. Owns every tensor that outlives a step."""
