"""Measures what a step takes on this machine, and fits the cost line that the simulator runs on."""
