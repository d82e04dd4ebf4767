"""The continuous-batching engine. Knows token ids, never text, never Postgres."""
