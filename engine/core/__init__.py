"""The scheduler: a pure, deterministic state machine. Standard library only; time comes in as an argument."""
