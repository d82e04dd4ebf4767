"""The schema's history, one file per step. Ships in the wheel; `gateway.store.migrate` runs it."""
