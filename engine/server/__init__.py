"""The engine's door: `evenflow.engine.v1` over a Unix socket or loopback. `serve.serve` is the composition root."""
