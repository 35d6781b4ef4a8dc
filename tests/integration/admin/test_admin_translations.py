"""Catalogues: every text of the app is marked and translated, compiled, and shown."""

from __future__ import annotations

import ast
import gettext
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

APP = Path(__file__).parents[3] / "django_app" / "django_wheelbeat"
LANGUAGES = sorted(path.name for path in (APP / "locale").iterdir())
LIST = "/admin/wheelbeat/monitor/"
MARKERS = {"_", "gettext", "gettext_lazy"}
PLURAL_MARKERS = {"ngettext", "ngettext_lazy"}
PLACEHOLDER = re.compile(r"%\(\w+\)[.0-9]*[a-z]|%%|\{\}")


def marked(source: str) -> Iterator[str | tuple[str, str]]:
    """Yield every marked text of Python source; of a text of numbers, both forms."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        wanted = 2 if node.func.id in PLURAL_MARKERS else 1 if node.func.id in MARKERS else 0
        texts = [argument.value for argument in node.args[:wanted] if isinstance(argument, ast.Constant)]
        assert len(texts) == wanted or not wanted, f"line {node.lineno}: a text that no catalogue can know"
        if wanted:
            yield (texts[0], texts[1]) if wanted == 2 else texts[0]


def all_marked() -> set[str | tuple[str, str]]:
    from django.utils.translation.template import templatize

    found: set[str | tuple[str, str]] = set()
    for path in APP.rglob("*.py"):
        if "migrations" not in path.parts:
            found.update(marked(path.read_text()))
    for path in (APP / "templates").rglob("*.html"):
        calls = re.findall(r"\bn?gettext\(.*?\) ", templatize(path.read_text()) + " ", re.DOTALL)
        for call in calls:
            found.update(marked(call.strip().replace(",count)", ")")))
    return found


def compiled(language: str) -> gettext.GNUTranslations:
    with (APP / "locale" / language / "LC_MESSAGES" / "django.mo").open("rb") as file:
        return gettext.GNUTranslations(file)


def written(language: str) -> dict[str, str]:
    """Return first form → translation of the file that people edit; of a text of numbers, its first form."""
    text = (APP / "locale" / language / "LC_MESSAGES" / "django.po").read_text()
    pairs = re.findall(r'^msgid (".*")\n(?:msgid_plural ".*"\n)?msgstr(?:\[0\])? (".*")$', text, re.MULTILINE)
    return {ast.literal_eval(one): ast.literal_eval(output) for one, output in pairs if one != '""'}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_text_is_missing_and_none_is_left_over(language: str) -> None:
    catalogue = compiled(language)._catalog  # type: ignore[attr-defined]
    texts = all_marked()
    assert len(texts) > 300, "the texts are found"
    for text in texts:
        forms = text if isinstance(text, tuple) else (text,)
        for number, form in enumerate(forms):
            output = catalogue.get((forms[0], number)) if len(forms) == 2 else catalogue.get(form)
            assert output, f"not translated: {form!r}"
            assert Counter(PLACEHOLDER.findall(output)) == Counter(PLACEHOLDER.findall(form)), form
    known = {text if isinstance(text, str) else text[0] for text in texts}
    assert written(language).keys() == known, "run make messages"


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_compiled_catalogue_is_that_of_the_file(language: str) -> None:
    catalogue = compiled(language)._catalog  # type: ignore[attr-defined]
    for text, output in written(language).items():
        assert catalogue.get(text, catalogue.get((text, 0))) == output


def test_the_admin_speaks_german(db: Any, login: Callable[..., Any]) -> None:
    from django.utils import translation

    from django_wheelbeat.models import Monitor

    ids = [Monitor.objects.create(name=name, task="t", interval_ms=60_000).pk for name in "ab"]
    with translation.override("de"):
        browser = login()
        for path, words in {
            "": (
                "Nächster Lauf",
                "Warteschlange",
                "Ausgewählte Monitore anhalten …",
                "Noch nie hat sich ein Beat",
                "alle 1m",
            ),
            "add/": (
                "Zeitzone",
                "Verpasste und überlappende Läufe",
                "Name eines registrierten",
                "Intervall der Störung",
            ),
            f"{ids[0]}/runs/": ("Vergangene Läufe von a", "Fälligkeit"),
            "scheduler/": ("Was läuft um …?", "Seiten der Monitore"),
            "one-off-runs/": ("Einmalige Läufe je Minute", "Es wurde kein Lauf gefunden."),
            "incidents/": ("Es läuft keine Störung.",),
            "import/": ("Nur ansehen (Probelauf)",),
            "../quarantine/": ("Monitore in Quarantäne",),
            "../audit/": ("hinzugefügt", "Wer"),
        }.items():
            text = browser.get(f"{LIST}{path}".replace("monitor/../", "")).content.decode()
            for word in words:
                assert word in text, path
        answer = {"action": "pause_monitors", "_selected_action": ids, "index": "0"}
        assert "2 aktive Monitore werden angehalten." in browser.post(LIST, answer).content.decode()
        done = browser.post(LIST, answer | {"confirmed": "x", "reason": "Umzug"}, follow=True)
        assert "2 Monitore wurden angehalten." in done.content.decode()
