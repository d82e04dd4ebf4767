"""The board of the engine: steps, memory, preemption, fairness."""

from parts import ENGINE, RATE, Board, Panel, quantiles, rate

ENGINES = Board(
    "evenflow-engine",
    "Evenflow: engine",
    "What steps hold and take, where the KV blocks are, who gives way and why, and how even the service is.",
    (
        (
            "Steps",
            (
                Panel("Time of a step", "s", quantiles("evenflow_engine_step_seconds", ENGINE)),
                Panel(
                    "Batch size",
                    "short",
                    (
                        *quantiles("evenflow_engine_step_sequences", ENGINE),
                        (f'max(evenflow_engine_step_limit{{of="sequences", {ENGINE}}})', "limit"),
                    ),
                ),
                Panel(
                    "Tokens per step",
                    "short",
                    (
                        *quantiles("evenflow_engine_step_tokens", ENGINE),
                        (f'max(evenflow_engine_step_limit{{of="tokens", {ENGINE}}})', "limit"),
                    ),
                ),
                Panel(
                    "Tokens computed", "tokens/s", ((rate("evenflow_engine_tokens_total", "kind", ENGINE), "{{kind}}"),)
                ),
                Panel(
                    "Requests by state",
                    "short",
                    ((f"sum by (state) (evenflow_engine_requests{{{ENGINE}}})", "{{state}}"),),
                    is_stacked=True,
                ),
                Panel(
                    "A new request would wait",
                    "s",
                    ((f"max by (instance) (evenflow_engine_new_request_wait_seconds{{{ENGINE}}})", "{{instance}}"),),
                ),
            ),
        ),
        (
            "Memory and preemption",
            (
                Panel(
                    "KV blocks by state",
                    "short",
                    ((f"sum by (pool, state) (evenflow_engine_blocks{{{ENGINE}}})", "{{pool}} {{state}}"),),
                    is_stacked=True,
                ),
                Panel(
                    "Preemptions",
                    "ops",
                    ((rate("evenflow_engine_preemptions_total", "mode, reason", ENGINE), "{{mode}} {{reason}}"),),
                ),
                Panel(
                    "Swapped",
                    "Bps",
                    ((rate("evenflow_engine_swapped_bytes_total", "direction", ENGINE), "{{direction}}"),),
                ),
                Panel(
                    "Out of memory",
                    "short",
                    (
                        (
                            f"sum by (instance) (increase(evenflow_engine_lost_steps_total{{{ENGINE}}}[{RATE}]))",
                            "{{instance}} steps",
                        ),
                        (
                            f"sum by (instance) (increase(evenflow_engine_requeues_total{{{ENGINE}}}[{RATE}]))",
                            "{{instance}} requests",
                        ),
                    ),
                    "Steps that came to nothing, and requests that were sent back by one.",
                ),
                Panel(
                    "Lost work",
                    "percentunit",
                    ((f"instance:evenflow_lost_work:ratio_rate5m{{{ENGINE}}}", "{{instance}}"),),
                ),
                Panel(
                    "Block losses per request",
                    "short",
                    ((f"instance:evenflow_block_losses:per_request5m{{{ENGINE}}}", "{{instance}}"),),
                ),
                Panel("Prices", "s", ((f"max by (of) (evenflow_engine_price_seconds{{{ENGINE}}})", "{{of}}"),)),
            ),
        ),
        (
            "Fairness",
            (
                Panel(
                    "Gap and its bound",
                    "short",
                    (
                        (f"max by (instance) (evenflow_engine_service_gap{{{ENGINE}}})", "gap"),
                        (f"max by (instance) (evenflow_engine_service_gap_bound{{{ENGINE}}})", "bound"),
                    ),
                    "In work by weight.",
                ),
                Panel(
                    "Jain's index of tenants that waited",
                    "short",
                    (
                        (f"min by (instance) (evenflow_engine_jain_index{{{ENGINE}}})", "index"),
                        (f"max by (instance) (evenflow_engine_backlogged_tenants{{{ENGINE}}})", "tenants"),
                    ),
                ),
                Panel(
                    "Policy faults, draining, usage that waits",
                    "short",
                    (
                        (f"max by (instance) (evenflow_engine_policy_fault{{{ENGINE}}})", "fault"),
                        (f"max by (instance) (evenflow_engine_draining{{{ENGINE}}})", "draining"),
                        (
                            f"max by (instance) (evenflow_engine_unacknowledged_usage{{{ENGINE}}})",
                            "usage not acknowledged",
                        ),
                    ),
                ),
            ),
        ),
    ),
    (("instance", "label_values(evenflow_engine_ready, instance)"),),
)
