"""Settings of every test: generated examples are the same on each run and have no deadline."""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "asterism",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("asterism")
