"""Every span, attribute and event that leaves this process in a trace, by name. `docs/traces.md` says what each means.

GEN_AI_*, RPC_* and HTTP_* are OpenTelemetry's: the semantic conventions for GenAI v0.1.0, and those for RPC and HTTP of
its SDK. GEN_AI_LATENCY_* are in none of them; vLLM and SGLang emit them under the same names. `span_dialects` renames
what others want to have named differently: OPENINFERENCE_* are of OpenInference 0.1.
"""

from enum import StrEnum


class Semconv(StrEnum):
    """Whose words describe a generation. NONE: only our own."""

    GEN_AI_V0_1 = "gen_ai_v0_1"
    GEN_AI_1_41 = "gen_ai_1_41"
    OPENINFERENCE = "openinference"
    NONE = "none"


PROVIDER = "evenflow"

AUTH_SPAN = "evenflow.auth"
ADMISSION_SPAN = "evenflow.admission"
DETOKENIZE_SPAN = "evenflow.detokenize"
SETTLE_SPAN = "evenflow.settle"
# In place of "{operation} {model}", the name by the conventions for GenAI, where those are not wanted.
GENERATION_SPAN = "evenflow.generation"

FIRST_OUTPUT_EVENT = "evenflow.first_token"
CANCELLED_EVENT = "evenflow.cancelled"
DEADLINE_EVENT = "evenflow.deadline"

AUTH_CACHE = "evenflow.auth.cache"
POLICY_REVISION = "evenflow.policy.revision"
ADMISSION_OUTCOME = "evenflow.admission.outcome"
RESERVED_TOKENS = "evenflow.admission.reserved_tokens"
NUM_LIMITS = "evenflow.admission.limits"
BINDING_LIMIT = "evenflow.admission.binding_limit"
BINDING_LIMIT_LEFT = "evenflow.admission.binding_limit.left"
RETRY_AFTER_S = "evenflow.admission.retry_after_s"
LEASE_MISS = "evenflow.admission.lease_miss"
NUM_CHUNKS = "evenflow.detokenize.chunks"
NUM_CHARACTERS = "evenflow.detokenize.characters"
BILLED_TOKENS = "evenflow.billed_tokens"
REFUNDED_TOKENS = "evenflow.refunded_tokens"
DISCARDED_TOKENS = "evenflow.discarded_tokens"
LEDGER = "evenflow.ledger"
GENERATION_ID = "evenflow.generation_id"
ORGANIZATION = "evenflow.organization"
TEAM = "evenflow.team"
PRIORITY_CLASS = "evenflow.priority_class"
NUM_PREEMPTIONS = "evenflow.preemptions"
NUM_BEAMS = "evenflow.beams"
IS_CONTENT_CUT = "evenflow.content.cut"

RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_STATUS_CODE = "rpc.response.status_code"
HTTP_METHOD = "http.request.method"
HTTP_ROUTE = "http.route"
HTTP_STATUS_CODE = "http.response.status_code"
ERROR_TYPE = "error.type"
SERVER_ADDRESS = "server.address"

GEN_AI_OPERATION = "gen_ai.operation.name"
GEN_AI_PROVIDER = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k"
GEN_AI_REQUEST_SEED = "gen_ai.request.seed"
GEN_AI_REQUEST_STREAM = "gen_ai.request.stream"
GEN_AI_REQUEST_STOP = "gen_ai.request.stop_sequences"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
GEN_AI_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
GEN_AI_INPUT_MESSAGES = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES = "gen_ai.output.messages"
GEN_AI_LATENCY_QUEUE_S = "gen_ai.latency.time_in_queue"
GEN_AI_LATENCY_FIRST_S = "gen_ai.latency.time_to_first_token"
GEN_AI_LATENCY_PREFILL_S = "gen_ai.latency.time_in_model_prefill"
GEN_AI_LATENCY_DECODE_S = "gen_ai.latency.time_in_model_decode"
GEN_AI_LATENCY_INFERENCE_S = "gen_ai.latency.time_in_model_inference"
GEN_AI_LATENCY_WHOLE_S = "gen_ai.latency.e2e"

OPENINFERENCE_KIND = "openinference.span.kind"
OPENINFERENCE_PROVIDER = "llm.provider"
OPENINFERENCE_MODEL = "llm.model_name"
OPENINFERENCE_PARAMETERS = "llm.invocation_parameters"
OPENINFERENCE_INPUT_TOKENS = "llm.token_count.prompt"
OPENINFERENCE_CACHED_TOKENS = "llm.token_count.prompt_details.cache_read"
OPENINFERENCE_OUTPUT_TOKENS = "llm.token_count.completion"
OPENINFERENCE_TOTAL_TOKENS = "llm.token_count.total"
OPENINFERENCE_FINISH_REASON = "llm.finish_reason"
OPENINFERENCE_INPUT_ROLE = "llm.input_messages.{}.message.role"
OPENINFERENCE_INPUT_TEXT = "llm.input_messages.{}.message.content"
OPENINFERENCE_OUTPUT_ROLE = "llm.output_messages.{}.message.role"
OPENINFERENCE_OUTPUT_TEXT = "llm.output_messages.{}.message.content"
OPENINFERENCE_INPUT_VALUE = "input.value"
OPENINFERENCE_OUTPUT_VALUE = "output.value"

ENUMERABLE = frozenset(
    {
        *(AUTH_CACHE, POLICY_REVISION, ADMISSION_OUTCOME, NUM_LIMITS, BINDING_LIMIT, LEASE_MISS, LEDGER),
        *(ORGANIZATION, TEAM, PRIORITY_CLASS, NUM_PREEMPTIONS, NUM_BEAMS, IS_CONTENT_CUT),
        *(RPC_SYSTEM, RPC_METHOD, RPC_STATUS_CODE, HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS_CODE),
        *(ERROR_TYPE, SERVER_ADDRESS),
        *(GEN_AI_OPERATION, GEN_AI_PROVIDER, GEN_AI_REQUEST_MODEL, GEN_AI_REQUEST_STREAM, GEN_AI_RESPONSE_MODEL),
        *(GEN_AI_FINISH_REASONS, OPENINFERENCE_KIND, OPENINFERENCE_PROVIDER, OPENINFERENCE_MODEL),
        OPENINFERENCE_FINISH_REASON,
    }
)
"""Attributes of few values, none of which a user has written: names of the configuration, kinds, reasons."""
