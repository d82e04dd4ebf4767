"""From the fields of the protocol to the parameters that a caller of a path knows."""

from collections import abc

from gateway.http.refusals import Renamed

_COMMON = {
    "spec.model": "model",
    "spec.sampling": "",
    "spec.stopping": "",
    "spec.output.logprobs": "logprobs",
    "spec.admission.labels": "metadata",
    "spec.admission.priority_class": "service_tier",
    "spec.request_id": "idempotency-key",
    "spec.beam_search": "beam_width",
    "spec.beam_search.width": "beam_width",
    "spec.beam_search.num_returned": "n",
    "spec.beam_search.length_penalty": "length_penalty",
    "spec.beam_search.early_stopping": "early_stopping",
}


def renaming(own: abc.Mapping[str, str]) -> Renamed:
    """`own` are those fields of a spec that the path has a name of its own for."""
    names = {**_COMMON, **{f"spec.{field}": name for field, name in own.items()}}
    longest_first = sorted(names.items(), key=lambda item: -len(item[0]))

    def renamed(field: str) -> str:
        return _renamed(field, longest_first)

    return renamed


def _renamed(field: str, longest_first: abc.Sequence[tuple[str, str]]) -> str:
    for path, name in longest_first:
        rest = field.removeprefix(path)
        if rest != field and rest[:1] in ("", ".", "["):
            return f"{name}{rest}".removeprefix(".")
    return field
