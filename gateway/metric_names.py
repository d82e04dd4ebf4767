"""The names of all metrics of the gateway, as Prometheus has them; docs/metrics.md says what each means.

A counter's name ends in `_total` when it is scraped, a histogram's in `_bucket`, `_sum` and `_count`. Those without our
prefix are OpenTelemetry's, with underscores for dots and the unit behind: semantic conventions for RPC, HTTP and GenAI
v0.1.0. Labels: `engine` is an address, `tenant` is `organization/team` for a bounded number of tenants, and
OTHER_TENANTS for all others together. No label ever holds a key, an end user, or what a client made up.
"""

# A call, by method and status, whatever it was about.
METRIC_RPC_DURATION = "rpc_server_call_duration_seconds"
METRIC_HTTP_DURATION = "http_server_request_duration_seconds"

# A generation, once the engine was asked for it.
METRIC_GEN_AI_DURATION = "gen_ai_server_request_duration_seconds"
METRIC_GEN_AI_TTFT = "gen_ai_server_time_to_first_token_seconds"
METRIC_GEN_AI_TPOT = "gen_ai_server_time_per_output_token_seconds"
METRIC_REQUESTS = "evenflow_requests"
METRIC_TOKENS = "evenflow_tokens"
METRIC_QUEUE_WAIT = "evenflow_queue_wait_seconds"
METRIC_TENANT_TTFT = "evenflow_tenant_first_token_seconds"
METRIC_TENANT_QUEUE_WAIT = "evenflow_tenant_queue_wait_seconds"
METRIC_SLOW_READERS = "evenflow_stream_slow_reader"
METRIC_LIVE_REQUESTS = "evenflow_gateway_live_requests"

# The door.
METRIC_ADMISSIONS = "evenflow_admissions"
METRIC_OVERHEAD = "evenflow_overhead_seconds"
METRIC_AUTH_CACHE = "evenflow_auth_cache"

# What the gateway knows of the tenancy, and its database.
METRIC_POLICY_REVISION = "evenflow_gateway_policy_revision"
METRIC_POLICY_PROPAGATION = "evenflow_policy_propagation_seconds"
METRIC_POLICY_STALENESS = "evenflow_policy_staleness_seconds"
METRIC_STORE_UP = "evenflow_gateway_store_up"
METRIC_DB_POOL = "evenflow_db_pool_connections"
METRIC_DB_POOL_SIZE = "evenflow_db_pool_size"
METRIC_UPTIME = "evenflow_gateway_uptime_seconds"
METRIC_DROPPED_SPANS = "evenflow_dropped_spans"

# Usage on its way to Postgres.
METRIC_SPOOL_RECORDS = "evenflow_ledger_spool_records"
METRIC_SPOOL_BYTES = "evenflow_ledger_spool_bytes"
METRIC_SPOOL_OLDEST = "evenflow_ledger_spool_oldest_seconds"
METRIC_LEDGER_DUPLICATES = "evenflow_ledger_duplicates"
METRIC_LEDGER_DROPPED = "evenflow_ledger_dropped_events"
METRIC_SPOOL_DAMAGED = "evenflow_ledger_spool_damaged_bytes"

# Limits, and the leases by which several gateways share them.
METRIC_QUOTA_DENIALS = "evenflow_quota_denials"
METRIC_QUOTA_SHADOW_DENIALS = "evenflow_quota_shadow_denials"
METRIC_QUOTA_REMAINING = "evenflow_quota_remaining_ratio"
METRIC_QUOTA_RESERVATIONS = "evenflow_quota_reservations"
METRIC_LEASE_GRANTED = "evenflow_lease_granted_tokens"
METRIC_LEASE_RETURNED = "evenflow_lease_returned_tokens"
METRIC_LEASE_EXPIRED = "evenflow_lease_expired_tokens"
METRIC_LEASE_MISSED = "evenflow_lease_missed_tokens"
METRIC_LEASE_OVERDRAWN = "evenflow_lease_overdrawn_tokens"
METRIC_LEASE_REFRESH = "evenflow_lease_refresh_seconds"

# What the engines tell of tenants, by their names, which no engine knows. Their other figures are on their own pages.
METRIC_ENGINE_UP = "evenflow_engine_up"
METRIC_TENANT_TOKENS = "evenflow_tenant_tokens"
METRIC_TENANT_WORK = "evenflow_tenant_served_work"
METRIC_TENANT_WAIT = "evenflow_tenant_wait_seconds"
METRIC_TENANT_PAUSES = "evenflow_tenant_pauses"
METRIC_TENANT_SWAPS = "evenflow_tenant_swaps"
METRIC_TENANT_COPIED = "evenflow_tenant_copied_bytes"
METRIC_TENANT_REQUESTS = "evenflow_tenant_requests"
METRIC_TENANT_SHARE = "evenflow_tenant_share"
METRIC_TENANT_WEIGHT_SHARE = "evenflow_tenant_weight_share"
METRIC_TENANT_LEAD = "evenflow_tenant_lead"
METRIC_TENANT_BLOCKS = "evenflow_tenant_device_blocks"

OTHER_TENANTS = "other"
