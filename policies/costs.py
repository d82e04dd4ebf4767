"""Over which weight the service of a flow is counted by policies that know no tree."""

from engine.core.policy import FlowView


def weight_of(flow: FlowView) -> float:
    """The product of the weights from the organization to the team."""
    weight = 1.0
    for node in flow.nodes:
        weight *= node.weight
    return weight
