"""Model files, weights and the layer stack. Knows nothing of sequences, plans or scheduling."""
