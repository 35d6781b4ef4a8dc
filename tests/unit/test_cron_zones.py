"""Zones as segments of constant offset: no hole, no overlap, the offsets of zoneinfo, and bounded work."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
import tzdata

from celery_wheelbeat.schedules import zones
from celery_wheelbeat.schedules.cron import Cron
from celery_wheelbeat.schedules.zones import EARLIEST_S, LATEST_S, Zone, zone

if TYPE_CHECKING:
    from pathlib import Path

ZONES = sorted(zones.names())
EXPRESSIONS = ("0 2,3 * * *", "0 */2 * * *", "30 * * * *", "30 3 * * *")
FROM_2015_MS = 1_420_070_400_000
FROM_2020_S = 1_577_836_800


def offset_s(name: str, instant_s: int) -> int:
    offset = datetime.fromtimestamp(instant_s, UTC).astimezone(ZoneInfo(name)).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


@pytest.mark.parametrize(
    "name",
    [
        "America/New_York",
        "Africa/Casablanca",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Europe/Dublin",
        "Africa/Monrovia",
    ],
)
def test_segments_cover_time_with_the_offsets_of_the_zone(name: str) -> None:
    instant_s, end_s = -3_000_000_000, 4_200_000_000
    before = None
    changes = 0
    while instant_s < end_s:
        segment = zone(name).segment(instant_s)
        assert segment.start_s <= instant_s < segment.end_s
        if before is not None:
            assert segment.start_s == before.end_s
            assert segment.shift_s == segment.offset_s - before.offset_s
        assert segment.offset_s == offset_s(name, segment.start_s) == offset_s(name, segment.end_s - 1)
        assert segment.offset_s == offset_s(name, (segment.start_s + segment.end_s) // 2)
        if segment.shift_s:
            changes += 1
            assert offset_s(name, segment.start_s - 1) == segment.offset_s - segment.shift_s
        before, instant_s = segment, segment.end_s
    assert changes > 1


@pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "America/New_York"])
def test_the_first_and_the_last_instant(name: str) -> None:
    assert zone(name).segment(EARLIEST_S).start_s == EARLIEST_S
    assert zone(name).segment(LATEST_S - 1).end_s == LATEST_S


def test_blocks_are_kept_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_wheelbeat.schedules.zones._BLOCKS_MAX", 3)
    fresh = Zone("Europe/Berlin")
    for year in range(10):
        instant_s = year * 31_557_600
        assert fresh.segment(instant_s).offset_s == offset_s("Europe/Berlin", instant_s)
        assert len(fresh._blocks) <= 3


@pytest.mark.soak
def test_two_thousand_fires_of_every_zone_advance() -> None:
    for name in ZONES:
        fires_advance(name, FROM_2015_MS, 2000)


def test_fires_advance_from_2015_on_and_at_every_change_of_five_years() -> None:
    for name in ZONES:
        fires_advance(name, FROM_2015_MS, 3)
        change_s = zone(name).segment(FROM_2015_MS // 1000).end_s
        while change_s < FROM_2020_S:
            fires_advance(name, (change_s - 7_200) * 1000, 4)
            change_s = zone(name).segment(change_s).end_s


def fires_advance(name: str, from_ms: int, count: int) -> None:
    for expression in EXPRESSIONS:
        cron = Cron(expression, name)
        before = from_ms - 1
        for _ in range(count):
            fire_ms = cron.next_fire(before)
            assert fire_ms is not None, (name, expression, before)
            assert fire_ms > before, (name, expression, before)
            before = fire_ms


def test_a_search_takes_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0
    segment = Zone.segment

    def counting(self: Zone, instant_s: int) -> object:
        nonlocal steps
        steps += 1
        return segment(self, instant_s)

    monkeypatch.setattr(Zone, "segment", counting)
    for expression, most in [
        ("* * * * *", 2),
        ("0 3 * * *", 3),
        ("0 0 29 2 1", 120),
        ("0 0 1 1 *", 8),
        ("*/30 2 8-14 3 0", 2_500),
    ]:
        steps = 0
        Cron(expression, "America/New_York").next_fire(FROM_2015_MS)
        assert steps <= most, expression


def test_the_version_of_the_zone_database_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """B22: two machines with different zone data disagree, and nobody sees why."""
    (tmp_path / "tzdata.zi").write_text("# version 2031c\n# more\n")
    for path, expected in (((str(tmp_path),), "2031c"), ((str(tmp_path / "none"),), tzdata.IANA_VERSION)):
        monkeypatch.setattr(zones, "TZPATH", path)
        zones.database_version.cache_clear()
        assert zones.database_version() == expected
    zones.database_version.cache_clear()
    (tmp_path / "tzdata.zi").unlink()
    (tmp_path / "UTC").write_text("")
    monkeypatch.setattr(zones, "TZPATH", (str(tmp_path),))
    assert zones.database_version() == "unknown"
    zones.database_version.cache_clear()
