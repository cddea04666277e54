"""What holds for every test: properties are judged by what they find, not by how busy the machine is."""

from hypothesis import HealthCheck, settings

# A clean clone builds Hypothesis' tables in its first example, and other work may share the cores:
# with the default limits on time, such a run is red though nothing is wrong.
settings.register_profile("sendonce", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("sendonce")
