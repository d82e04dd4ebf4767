"""The board of the objectives: burn rates and alerts."""

from parts import Board, Panel

WINDOWS = ("5m", "30m", "1h", "6h")
OBJECTIVES = Board(
    "evenflow-objectives",
    "Evenflow: objectives",
    "How fast the month's budgets are used up: 0.5 % of generations may fail, 5 % of first tokens may take over 2.5 s.",
    (
        (
            "Burn rate: 1 uses up the budget in a month",
            (
                Panel(
                    "Failed generations",
                    "short",
                    tuple((f"evenflow:failed_calls:ratio_rate{window} / 0.005", window) for window in WINDOWS),
                    "A page at 14.4 in an hour and in five minutes, a ticket at 6 in six hours and in half an hour.",
                ),
                Panel(
                    "Late first tokens",
                    "short",
                    tuple((f"evenflow:late_first_tokens:ratio_rate{window} / 0.05", window) for window in WINDOWS),
                ),
                Panel("Generations asked for", "reqps", (("evenflow:calls:rate5m", "both doors"),)),
            ),
        ),
        (
            "Alerts",
            (
                Panel(
                    "Firing",
                    "short",
                    (('count by (alertname, severity) (ALERTS{alertstate="firing"})', "{{alertname}} {{severity}}"),),
                ),
                Panel(
                    "Pending",
                    "short",
                    (('count by (alertname, severity) (ALERTS{alertstate="pending"})', "{{alertname}} {{severity}}"),),
                ),
                Panel(
                    "Pages that answer",
                    "short",
                    (("sum by (job) (up)", "{{job}}"), ("min by (engine) (evenflow_engine_up)", "engine {{engine}}")),
                ),
            ),
        ),
    ),
)
