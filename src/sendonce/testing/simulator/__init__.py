"""The simulator: the product's own stages under one seeded virtual clock, with everything going wrong."""

from sendonce.testing.simulator.faults import PROFILES as PROFILES
from sendonce.testing.simulator.faults import Fault as Fault
from sendonce.testing.simulator.faults import Profile as Profile
from sendonce.testing.simulator.world import Outcome as Outcome
from sendonce.testing.simulator.world import run_seed as run_seed
