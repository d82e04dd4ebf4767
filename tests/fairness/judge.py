"""Whether a run on counterexample traffic shows the breach that its changed rule causes."""

from tests.fairness.counterexamples import Counterexample, F, G
from tests.fairness.observer import Report


def shows_breach(case: Counterexample, report: Report, true_report: Report) -> bool:
    """`true_report` is the run of the true rules on the same traffic."""
    if case.breach == "dispatch":
        return report.max_dispatch_steps.get(G, 0) > case.limit
    if case.breach == "starved":
        return report.served.get(F, 0.0) < case.limit * true_report.served[F]
    if case.breach == "idle":
        return bool({"idle", "strict"} & report.breaches.keys())  # what the core does when nothing can run
    return case.breach in report.breaches
