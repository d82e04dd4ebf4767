"""Scheduling and preemption policies, loaded by entry point through the same door as a stranger's."""
