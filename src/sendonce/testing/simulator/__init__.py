"""The simulator: the product's own stages under one seeded virtual clock, with everything going wrong.

    outcome = run_seed(7, PROFILES["standard"])
    assert outcome.ok, outcome.broken

What is real: every stage, SQLite, the ledger. What is simulated, and decided by the seed: time, chance, the
order of everything, processes that die and freeze, providers of each class, networks, brokers, people.
"""

from sendonce.testing.simulator.coverage import Coverage as Coverage
from sendonce.testing.simulator.faults import PROFILES as PROFILES
from sendonce.testing.simulator.faults import Fault as Fault
from sendonce.testing.simulator.faults import Profile as Profile
from sendonce.testing.simulator.shrink import Shrunk as Shrunk
from sendonce.testing.simulator.shrink import shrink as shrink
from sendonce.testing.simulator.world import Outcome as Outcome
from sendonce.testing.simulator.world import run_seed as run_seed
