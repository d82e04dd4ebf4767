"""The board of what quotas run on: leases, propagation, the ledger."""

from parts import RATE, Board, Panel, quantiles, rate

PLUMBING = Board(
    "evenflow-plumbing",
    "Evenflow: quota plumbing",
    "How gateways share limits, how soon they hear of changes, and where usage is on its way to Postgres.",
    (
        (
            "Leases",
            (
                Panel(
                    "Leased, in the limits' units",
                    "ops",
                    (
                        (rate("evenflow_lease_granted_tokens_total"), "granted"),
                        (rate("evenflow_lease_returned_tokens_total"), "returned"),
                        (rate("evenflow_lease_expired_tokens_total"), "expired"),
                        (rate("evenflow_lease_missed_tokens_total"), "asked for while a request waited"),
                        (rate("evenflow_lease_overdrawn_tokens_total"), "overdrawn"),
                    ),
                ),
                Panel(
                    "A turn at Postgres", "s", (("max by (instance) (evenflow_lease_refresh_seconds)", "{{instance}}"),)
                ),
                Panel(
                    "Requests that hold quota",
                    "short",
                    (("sum by (instance) (evenflow_quota_reservations)", "{{instance}}"),),
                ),
            ),
        ),
        (
            "Propagation",
            (
                Panel("From a change to its effect", "s", quantiles("evenflow_policy_propagation_seconds")),
                Panel("Staleness", "s", (("max by (instance) (evenflow_policy_staleness_seconds)", "{{instance}}"),)),
                Panel(
                    "Revision in force",
                    "short",
                    (("max by (instance) (evenflow_gateway_policy_revision)", "{{instance}}"),),
                ),
                Panel(
                    "Postgres reachable", "short", (("min by (instance) (evenflow_gateway_store_up)", "{{instance}}"),)
                ),
                Panel(
                    "Connections",
                    "short",
                    (
                        ("sum by (instance, state) (evenflow_db_pool_connections)", "{{instance}} {{state}}"),
                        ("max by (instance) (evenflow_db_pool_size)", "{{instance}} at most"),
                    ),
                ),
            ),
        ),
        (
            "Ledger",
            (
                Panel(
                    "Events that wait",
                    "short",
                    (("sum by (instance) (evenflow_ledger_spool_records)", "{{instance}}"),),
                ),
                Panel(
                    "The oldest waits for",
                    "s",
                    (("max by (instance) (evenflow_ledger_spool_oldest_seconds)", "{{instance}}"),),
                ),
                Panel("Spool on disk", "bytes", (("sum by (instance) (evenflow_ledger_spool_bytes)", "{{instance}}"),)),
                Panel(
                    "Duplicates and losses",
                    "short",
                    (
                        (
                            f"sum by (instance) (increase(evenflow_ledger_duplicates_total[{RATE}]))",
                            "{{instance}} written twice",
                        ),
                        (
                            f"sum by (instance) (increase(evenflow_ledger_dropped_events_total[{RATE}]))",
                            "{{instance}} lost",
                        ),
                        (
                            f"sum by (instance) (increase(evenflow_ledger_spool_damaged_bytes_total[{RATE}]))",
                            "{{instance}} damaged bytes",
                        ),
                        (
                            f"sum by (instance) (increase(evenflow_engine_dropped_usage_total[{RATE}]))",
                            "{{instance}} forgotten by the engine",
                        ),
                    ),
                ),
            ),
        ),
    ),
)
