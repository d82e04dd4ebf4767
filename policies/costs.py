"""What service costs by default, and over which weight it is counted. Source: Sheng et al. 2024 (OSDI), §5."""

from engine.core.policy import FlowView

# w_p and w_q of the paper's evaluation.
PREFILL_COST = 1.0
OUTPUT_COST = 2.0


def weight_of(flow: FlowView) -> float:
    """The product of the weights from the organization to the team."""
    weight = 1.0
    for node in flow.nodes:
        weight *= node.weight
    return weight
