"""A drill: the user's own configuration meets everything that goes wrong, before it meets a customer.

    stage       the configuration with a store and providers that are made for the drill
    processes   real workers and schedulers, to be killed, frozen and continued
    world       the world of one scenario: what people and providers do in it, and what is counted
    scenario    what a scenario and its result are
    scenarios   all of them, declared
    run         one after the other, several side by side
    report      what is told of it, also as a page

`prepared`, `run` and `report_of` are all of it; the command line shows it. No byte goes to a configured
provider: each account's adapter is made anew for a sandbox on this machine. The one exception is an account
that the configuration marks `sandbox = true` and the caller names; then that account is all there is.
"""

from sendonce.testing.drill.report import Report, page
from sendonce.testing.drill.run import Drill, prepared, report_of, run
from sendonce.testing.drill.scenario import Result, Scenario, Step, Totals, Verdict
from sendonce.testing.drill.scenarios import SCENARIOS

__all__ = [
    "SCENARIOS",
    "Drill",
    "Report",
    "Result",
    "Scenario",
    "Step",
    "Totals",
    "Verdict",
    "page",
    "prepared",
    "report_of",
    "run",
]
