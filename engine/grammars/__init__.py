"""Outputs held to a JSON schema, a regular expression or a grammar, over the bytes of a model's vocabulary.

A grammar is compiled beside the engine's thread, once for all requests that have it; the runner moves a copy along with
each output. Which tokens may follow is the library's to say (`llguidance`), within limits on the work of one mask.
"""
