"""The names of all metrics of the engine, as Prometheus has them; docs/metrics.md says what each means.

A counter's name ends in `_total` when it is scraped. No label names a tenant: the engine knows ids only, and what it
served whom is on the gateways' pages, by name.
"""

METRIC_READY = "evenflow_engine_ready"
METRIC_INFO = "evenflow_engine_info"
METRIC_UPTIME = "evenflow_engine_uptime_seconds"
METRIC_DRAINING = "evenflow_engine_draining"
METRIC_POLICY_FAULT = "evenflow_engine_policy_fault"
METRIC_REQUESTS = "evenflow_engine_requests"
METRIC_FINISHED = "evenflow_engine_finished_requests"
METRIC_NEW_REQUEST_WAIT = "evenflow_engine_new_request_wait_seconds"
METRIC_SATURATION = "evenflow_engine_saturation"

METRIC_STEP = "evenflow_engine_step_seconds"
METRIC_STEP_SEQUENCES = "evenflow_engine_step_sequences"
METRIC_STEP_TOKENS = "evenflow_engine_step_tokens"
METRIC_STEP_LIMIT = "evenflow_engine_step_limit"
METRIC_TOKENS = "evenflow_engine_tokens"
METRIC_DRAFTS = "evenflow_engine_draft_tokens"
METRIC_PRICE = "evenflow_engine_price_seconds"

METRIC_BLOCKS = "evenflow_engine_blocks"
METRIC_EVICTED = "evenflow_engine_evicted_blocks"
METRIC_PREEMPTIONS = "evenflow_engine_preemptions"
METRIC_LOST_STEPS = "evenflow_engine_lost_steps"
METRIC_REQUEUES = "evenflow_engine_requeues"
METRIC_SWAPPED = "evenflow_engine_swapped_bytes"

METRIC_GAP = "evenflow_engine_service_gap"
METRIC_GAP_BOUND = "evenflow_engine_service_gap_bound"
METRIC_JAIN_INDEX = "evenflow_engine_jain_index"
METRIC_BACKLOGGED = "evenflow_engine_backlogged_tenants"

METRIC_USAGE_WAITING = "evenflow_engine_unacknowledged_usage"
METRIC_USAGE_DROPPED = "evenflow_engine_dropped_usage"
METRIC_DROPPED_SPANS = "evenflow_engine_dropped_spans"
