"""An invalid setting ends every command of celery with its message and exit code 1, without a traceback."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

APP = """
from celery import Celery
app = Celery("refused", broker="memory://")
app.conf.update(wheelbeat_tick=7, wheelbeat_worker=True)
"""
COMMANDS = ["beat -S wheelbeat", "-q beat -S wheelbeat", "worker -P solo", "worker -B -S wheelbeat", "wheelbeat status"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_invalid_setting_is_a_message(command: str, tmp_path: Path) -> None:
    (tmp_path / "refused.py").write_text(APP)
    celery = [sys.executable, "-m", "celery", "-A", "refused"]
    done = subprocess.run(
        [*celery, *command.split()], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 1
    assert "Error: wheelbeat_tick = 7 (int): expected one of" in output
    assert "Traceback" not in output
