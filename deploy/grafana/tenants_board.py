"""The board of the tenants: share against weight, waits, limits."""

from parts import TENANT, Board, Panel, p95, per_tenant, per_tenant_rate, rate

TENANTS = Board(
    "evenflow-tenants",
    "Evenflow: tenants",
    "Who gets how much of the engine, against what the weights give, who waits, and which limits refuse.",
    (
        (
            "Share",
            (
                Panel(
                    "Share of the work, last five minutes",
                    "percentunit",
                    ((f"tenant:evenflow_share:ratio_rate5m{{{TENANT}}}", "{{tenant}}"),),
                    is_stacked=True,
                ),
                Panel(
                    "Share over share by weight",
                    "short",
                    ((f"tenant:evenflow_share_of_weight:ratio_rate5m{{{TENANT}}}", "{{tenant}}"),),
                    "1: as much as its weight gives it. Who asks for less is below, and others above.",
                ),
                Panel(
                    "Share by weight",
                    "percentunit",
                    ((per_tenant("evenflow_tenant_weight_share"), "{{tenant}}"),),
                    "Among the tenants that have work or were served in the last five minutes.",
                ),
                Panel(
                    "Lead over the least served",
                    "short",
                    ((per_tenant("evenflow_tenant_lead"), "{{tenant}}"),),
                    "In work by weight, among siblings that have work.",
                ),
                Panel(
                    "Borrowed and lost work",
                    "tokens/s",
                    (
                        (
                            per_tenant_rate("evenflow_tenant_tokens_total", "kind", 'kind=~"borrowed|recomputed"'),
                            "{{tenant}} {{kind}}",
                        ),
                    ),
                ),
                Panel(
                    "KV blocks held",
                    "short",
                    ((per_tenant("evenflow_tenant_device_blocks"), "{{tenant}}"),),
                    is_stacked=True,
                ),
            ),
        ),
        (
            "Waiting",
            (
                Panel(
                    "Waiting requests",
                    "short",
                    ((per_tenant("evenflow_tenant_requests", 'state="waiting"'), "{{tenant}}"),),
                ),
                Panel(
                    "Wait for the first step, p95",
                    "s",
                    (
                        (
                            p95("evenflow_tenant_queue_wait_seconds", "tenant", TENANT),
                            "{{tenant}}",
                        ),
                    ),
                ),
                Panel(
                    "Time to first token, p95",
                    "s",
                    (
                        (
                            p95("evenflow_tenant_first_token_seconds", "tenant", TENANT),
                            "{{tenant}}",
                        ),
                    ),
                ),
                Panel(
                    "Wait by class, p95",
                    "s",
                    (
                        (
                            p95("evenflow_queue_wait_seconds", "priority_class, outcome"),
                            "{{priority_class}} {{outcome}}",
                        ),
                    ),
                ),
                Panel(
                    "Pauses and swaps",
                    "ops",
                    (
                        (
                            per_tenant_rate("evenflow_tenant_pauses_total"),
                            "{{tenant}} paused",
                        ),
                        (
                            per_tenant_rate("evenflow_tenant_swaps_total", "direction"),
                            "{{tenant}} swapped {{direction}}",
                        ),
                    ),
                ),
            ),
        ),
        (
            "Limits",
            (
                Panel(
                    "Denials by limit",
                    "ops",
                    (
                        (
                            rate("evenflow_quota_denials_total", "tenant, level, dimension", TENANT),
                            "{{tenant}} {{level}} {{dimension}}",
                        ),
                    ),
                ),
                Panel(
                    "Would be denied (shadow)",
                    "ops",
                    (
                        (
                            rate("evenflow_quota_shadow_denials_total", "tenant, level, dimension", TENANT),
                            "{{tenant}} {{level}} {{dimension}}",
                        ),
                    ),
                ),
                Panel(
                    "Least left of limits",
                    "percentunit",
                    (
                        (
                            "min by (tenant, level, dimension) (evenflow_quota_remaining_ratio)",
                            "{{tenant}} {{level}} {{dimension}}",
                        ),
                    ),
                    "Of each gateway as far as it knows; the one that knows of the least.",
                ),
                Panel(
                    "Tokens",
                    "tokens/s",
                    ((rate("evenflow_tokens_total", "tenant, kind", TENANT), "{{tenant}} {{kind}}"),),
                ),
                Panel(
                    "Refused at the door",
                    "reqps",
                    (
                        (
                            rate("evenflow_admissions_total", "tenant, reason", f'outcome="refused", {TENANT}'),
                            "{{tenant}} {{reason}}",
                        ),
                    ),
                ),
            ),
        ),
    ),
    (("tenant", "label_values(evenflow_tenant_requests, tenant)"),),
)
