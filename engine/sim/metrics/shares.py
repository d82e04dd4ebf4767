"""Who should have got how much."""

import numpy as np
import numpy.typing as npt

from engine.sim.metrics.windows import sums_by

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def max_min_shares(demands: Floats, weights: Floats, capacity: float) -> Floats:
    """Weighted max-min shares by water filling: nobody gets more than the demand, and what is left goes to the others
    in proportion to their weights."""
    shares = np.zeros(len(demands))
    left, weight_left = capacity, float(weights.sum())
    for index in np.argsort(demands / weights, kind="stable").tolist():
        shares[index] = min(demands[index], weights[index] * max(left, 0.0) / weight_left)
        left -= shares[index]
        weight_left = max(weight_left - weights[index], 1e-300)
    return shares


def tree_shares(demands: Floats, weights: Floats, parents: Ints, parent_weights: Floats, capacity: float) -> Floats:
    """The same on a tree of two levels: first between the parents, then among the children of each."""
    parent_demands = sums_by(parents, demands, len(parent_weights))
    parent_shares = max_min_shares(parent_demands, parent_weights, capacity)
    shares = np.zeros(len(demands))
    order = np.argsort(parents, kind="stable")
    for children in np.split(order, np.flatnonzero(np.diff(parents[order])) + 1):
        if len(children):
            share = float(parent_shares[parents[children[0]]])
            shares[children] = max_min_shares(demands[children], weights[children], share)
    return shares
