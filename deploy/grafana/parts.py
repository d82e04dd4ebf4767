"""What a board is made of, and the queries that boards have in common. Knows nothing of Grafana's format.

What gateways tell of an engine's tenants is the same whoever tells it: `max`, never `sum`, over gateways. Variables:
$tenant of the tenants that have a label of their own, $instance of the engines' pages.
"""

from dataclasses import dataclass

RATE = "$__rate_interval"
GENERATE = 'rpc_method=~"evenflow.inference.v1.GenerationService/(Generate|StreamGenerate)"'
ROUTES = 'http_route=~"/v1/(chat/completions|completions|responses)"'
OTHER_CALLS = 'rpc_method!~".*/(Watch|Stream|Generate).*"'
TENANT = 'tenant=~"$tenant"'
ENGINE = 'instance=~"$instance"'


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines over time: (query, legend) each. `unit` is one of Grafana's; `is_stacked`: they are parts of a whole."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    description: str = ""
    is_stacked: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """`variables`: (name, the labels' values as Prometheus is asked for them)."""

    uid: str
    title: str
    description: str
    rows: tuple[tuple[str, tuple[Panel, ...]], ...]
    variables: tuple[tuple[str, str], ...] = ()


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Per second, summed over everything but the labels `by`."""
    return f"sum by ({by}) (rate({metric}{{{where}}}[{RATE}]))"


def quantiles(histogram: str, where: str = "", by: str = "") -> tuple[tuple[str, str], ...]:
    """p50, p95 and p99 of a histogram, for each value of the label `by`, if there is one."""
    buckets = rate(f"{histogram}_bucket", f"le, {by}" if by else "le", where)
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple((f"histogram_quantile({q}, {buckets})", f"{legend}p{round(q * 100)}") for q in (0.5, 0.95, 0.99))


def per_tenant(gauge: str, where: str = "") -> str:
    """One gateway's word on each tenant."""
    selector = f"{TENANT}, {where}" if where else TENANT
    return f"max by (engine, tenant) ({gauge}{{{selector}}})"


def p95(histogram: str, by: str, where: str = "") -> str:
    """For each value of the labels `by`."""
    return f"histogram_quantile(0.95, {rate(f'{histogram}_bucket', f'le, {by}', where)})"


def per_tenant_rate(counter: str, by: str = "", where: str = "") -> str:
    """Per second, one gateway's word on each tenant and value of the label `by`."""
    labels = f"engine, tenant, {by}" if by else "engine, tenant"
    selector = f"{TENANT}, {where}" if where else TENANT
    return f"max by ({labels}) (rate({counter}{{{selector}}}[{RATE}]))"
