"""Hierarchical, weighted, preemptive virtual-token-counter scheduling: the default, with a proven bound on the gap."""

from policies.fair.policy import Fair

__all__ = ["Fair"]
