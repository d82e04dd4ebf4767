"""The board of the service: rate, errors, duration, tokens, and what of it is the gateway's."""

from parts import GENERATE, OTHER_CALLS, Board, Panel, p95, quantiles, rate

SERVICE = Board(
    "evenflow-service",
    "Evenflow: service",
    "How much is asked, how much of it fails, how long it takes, and how much of that is the gateway's.",
    (
        (
            "Rate, errors, duration",
            (
                Panel(
                    "Calls over gRPC by status",
                    "reqps",
                    (
                        (
                            rate("rpc_server_call_duration_seconds_count", "rpc_response_status_code", GENERATE),
                            "{{rpc_response_status_code}}",
                        ),
                    ),
                    "Generate and StreamGenerate.",
                ),
                Panel(
                    "Requests over HTTP by status",
                    "reqps",
                    (
                        (
                            rate(
                                "http_server_request_duration_seconds_count",
                                "http_route, http_response_status_code, error_type",
                            ),
                            "{{http_route}} {{http_response_status_code}} {{error_type}}",
                        ),
                    ),
                ),
                Panel(
                    "Failed by us",
                    "percentunit",
                    (("evenflow:failed_calls:ratio_rate5m", "of all generations"),),
                    "INTERNAL, UNKNOWN, UNAVAILABLE, DATA_LOSS; over HTTP by the reasons of these. Of five minutes.",
                ),
                Panel(
                    "Duration of generations",
                    "s",
                    quantiles("gen_ai_server_request_duration_seconds"),
                ),
                Panel(
                    "Other calls, p95",
                    "s",
                    (
                        (
                            f"topk(8, {p95('rpc_server_call_duration_seconds', 'rpc_method', OTHER_CALLS)})",
                            "{{rpc_method}}",
                        ),
                    ),
                ),
                Panel(
                    "Generations by outcome",
                    "reqps",
                    ((rate("evenflow_requests_total", "outcome, reason"), "{{outcome}} {{reason}}"),),
                ),
            ),
        ),
        (
            "Tokens",
            (
                Panel("Time to first token", "s", quantiles("gen_ai_server_time_to_first_token_seconds")),
                Panel("Time per output token", "s", quantiles("gen_ai_server_time_per_output_token_seconds")),
                Panel("Tokens", "tokens/s", ((rate("evenflow_tokens_total", "kind"), "{{kind}}"),)),
            ),
        ),
        (
            "The gateway",
            (
                Panel(
                    "Overhead by stage, p95",
                    "s",
                    (
                        (
                            p95("evenflow_overhead_seconds", "stage"),
                            "{{stage}}",
                        ),
                    ),
                ),
                Panel(
                    "Admissions",
                    "reqps",
                    ((rate("evenflow_admissions_total", "outcome, reason"), "{{outcome}} {{reason}}"),),
                ),
                Panel("Credentials", "reqps", ((rate("evenflow_auth_cache_total", "result"), "{{result}}"),)),
                Panel(
                    "Live generations",
                    "short",
                    (("sum(evenflow_gateway_live_requests)", "all gateways"),),
                ),
                Panel(
                    "Slow readers and dropped spans",
                    "ops",
                    (
                        (rate("evenflow_stream_slow_reader_total"), "held for a reader"),
                        (rate("evenflow_dropped_spans_total"), "spans dropped"),
                    ),
                ),
            ),
        ),
    ),
)
