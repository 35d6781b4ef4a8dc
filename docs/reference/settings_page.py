"""Write ``settings.md`` from the table of settings: ``python docs/reference/settings_page.py``."""

# ruff: noqa: INP001 - a program beside the page it writes

from __future__ import annotations

from pathlib import Path

from celery_wheelbeat.settings import PREFIX, defaults, specifications

HEAD = """# Settings

Set them on the Celery app (`app.conf.wheelbeat_tick = 0.5`), or in Django's settings with the app's namespace and in
capitals (`CELERY_WHEELBEAT_TICK = 0.5`). They are read once, when beat starts. An unknown key or a value out of
bounds stops the start with an error that names the key, the value and what was expected.
"""


def render() -> str:
    """Return the page as Markdown text."""
    default_of = defaults()
    sections = []
    for name, setting in specifications().items():
        default = default_of[name]
        shown = f"{default:,}" if isinstance(default, (int, float)) and not isinstance(default, bool) else repr(default)
        unit = f" {setting.unit}" if setting.unit and default is not None else ""
        sections.append(
            f"## `{PREFIX}{name}`\n\n{setting.doc}\n\n* default: `{shown}`{unit}\n* expected: {setting.expected()}\n"
        )
    return "\n".join([HEAD, *sections])


if __name__ == "__main__":
    Path(__file__).with_name("settings.md").write_text(render(), encoding="utf-8")
