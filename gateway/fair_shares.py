"""What part of a work each team's weight gives it. Pure arithmetic on the tree of tenants."""

from collections import abc

Path = tuple[str, ...]
"""(organization, team), by their ids or by their names."""

Weights = abc.Mapping[Path, float]
"""Of organizations and of teams, each by its own path. One that is not there, or not above 0, counts as 1."""


def shares_of_sharing(
    has_work: abc.Mapping[Path, bool], served: abc.Container[Path], weights: Weights
) -> dict[Path, float]:
    """What the weights give those that have work or are among the `served`: a team that starves has its due, too."""
    return fair_shares((path for path, is_busy in has_work.items() if is_busy or path in served), weights)


def fair_shares(paths: abc.Iterable[Path], weights: Weights) -> dict[Path, float]:
    """What the weights give each of `paths`, level by level, where they alone have work; 1 together."""
    wanted = list(dict.fromkeys(paths))
    nodes = dict.fromkeys(path[:level] for path in wanted for level in range(1, len(path) + 1))
    below: dict[Path, float] = {}
    for node in nodes:
        below[node[:-1]] = below.get(node[:-1], 0.0) + _weight(weights, node)
    shares = dict.fromkeys(wanted, 1.0)
    for path in wanted:
        for level in range(1, len(path) + 1):
            shares[path] *= _weight(weights, path[:level]) / below[path[: level - 1]]
    return shares


def _weight(weights: Weights, path: Path) -> float:
    weight = weights.get(path, 1.0)
    return weight if weight > 0 else 1.0
