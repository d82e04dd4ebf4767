"""What the steps of a run held, for a look at where time goes."""

from collections import abc

from tests.bench.live_engine import Step, percentile


def step_table(steps: abc.Sequence[Step], num_shown: int = 12) -> str:
    """The steps by what they hold, the most frequent kinds first, for a look at where time goes."""
    kinds: dict[tuple[int, int, bool], list[Step]] = {}
    for step in steps:
        kind = (step.num_decodes // 4 * 4, -(-step.num_chunk_tokens // 64) * 64, step.num_copied > 0)
        kinds.setdefault(kind, []).append(step)
    total_ms = sum(step.ms for step in steps) or 1.0
    lines = ["decodes  chunk<=  copies  steps  share  p50 ms  max ms"]
    for (decodes, chunk, copies), group in sorted(kinds.items(), key=lambda item: -sum(s.ms for s in item[1]))[
        :num_shown
    ]:
        times = [step.ms for step in group]
        lines.append(
            f"{decodes:4}-{decodes + 3:<3} {chunk:7}  {'yes' if copies else 'no':>6}  {len(group):5}"
            f"  {sum(times) / total_ms:5.1%}  {percentile(times, 0.5):6.1f}  {max(times):6.1f}"
        )
    return "\n".join(lines)
