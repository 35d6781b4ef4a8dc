"""A command on a database of an earlier release says that migrate has to be run, without a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from support.site.databases import as_default, site_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMANDS = ["prune", "export", "import", "import_redbeat", "resync", "triggers"]


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A database to which the newest migrations were not applied."""
    path = tmp_path_factory.mktemp("behind")
    with site_database(f"sqlite:///{path}/site.sqlite3") as connection, as_default(connection):
        call_command("migrate", "wheelbeat", "0005", verbosity=0)
        yield connection


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_names_migrate(behind: Any, command: str, tmp_path: Path, redis_url: str) -> None:
    monitors = tmp_path / "monitors.jsonl"
    monitors.write_text("")
    given = {"import": [str(monitors)], "import_redbeat": ["--url", redis_url], "triggers": ["--check"]}.get(
        command, []
    )
    with pytest.raises(CommandError, match=r"lacks \d+ migrations of wheelbeat, the first is 0006.*manage.py migrate"):
        call_command(f"wheelbeat_{command}", *given, verbosity=0)
