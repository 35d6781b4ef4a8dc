"""How long a Hypothesis machine of the engine runs."""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings


def machine_settings(examples: int) -> settings:
    """Settings of a machine that runs ``examples`` times, thirty steps each."""
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        phases=[phase for phase in Phase if phase != Phase.explain],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
