"""Hierarchical, weighted, preemptive virtual-token-counter scheduling: the default, with a proven bound on the gap.

Rules R1 to R9, the bound and its proof: docs/fairness.md.
"""

from policies.fair.policy import Fair

__all__ = ["Fair"]
