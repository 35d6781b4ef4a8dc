"""Alerts and reminders of the example project: with the transaction, replaced, and cancelled when the site is up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "example_project"
STORY = """
import django, json, logging
django.setup()
from datetime import timedelta
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from django.utils import timezone
from celery_wheelbeat import later
from django_wheelbeat.models import Monitor
from uptime.alerts import reminder_key, send_alert, send_reminder
from uptime.models import Alert, Site
from uptime.probe import Probe
from uptime.tasks import record

call_command("migrate", verbosity=0, interactive=False)
shop = Monitor.objects.create(name="shop", task="uptime.tasks.check_url", interval_ms=60_000)
start = timezone.now()
UP, DOWN = Probe(True, 200, 5, ""), Probe(False, 503, 5, "HTTP 503")
minute = 0

def check(found):
    global minute
    minute += 1
    record(shop, start + timedelta(minutes=minute), timezone.now(), found)

def stored():
    with connection.cursor() as cursor:
        cursor.execute("SELECT task FROM wheelbeat_later WHERE task <> '' ORDER BY seq")
        return [task.rpartition(".")[2] for task, in cursor.fetchall()]

check(UP)
found = {"at first": stored()}
try:
    with transaction.atomic():
        check(DOWN)
        found["inside"] = stored()
        raise RuntimeError("the check could not be stored")
except RuntimeError:
    found["rolled back"] = stored()
check(DOWN)
found["committed"] = stored()
client = Client(headers={"host": "localhost"})
found["too much"] = client.post(f"/remind/{shop.pk}/", {"minutes": "5000"}).status_code
found["read only"] = client.get(f"/remind/{shop.pk}/").status_code
forged = Client(enforce_csrf_checks=True, headers={"host": "localhost"})
found["forged"] = forged.post(f"/remind/{shop.pk}/", {"minutes": "10"}).status_code
client.post(f"/remind/{shop.pk}/", {"minutes": "10"})
client.post(f"/remind/{shop.pk}/", {"minutes": "60"})
run = later.pending(key=reminder_key(shop.pk))
found["minutes"] = round((run.at - timezone.now()).total_seconds() / 60)
found["with a reminder"] = stored()
found["page"] = "reminder at" in client.get("/").content.decode()
send_alert(shop.pk, "shop is down: HTTP 503")
send_reminder(shop.pk)
found["alerts"] = list(Alert.objects.order_by("pk").values_list("text", flat=True))
check(UP)
found["up again"] = stored()
found["reminder"] = later.pending(key=reminder_key(shop.pk))
send_reminder(shop.pk)
found["number of alerts"] = Alert.objects.count()
found["of a site that is up"] = client.post(f"/remind/{shop.pk}/", {"minutes": "10"}).status_code
print(json.dumps(found))
"""


@pytest.mark.processes
def test_alerts_join_the_transaction_and_reminders_end_with_the_outage(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "WHEELBEAT_EXAMPLE_VAR": str(tmp_path),
        "PYTHONPATH": str(EXAMPLE),
    }
    done = subprocess.run(
        [sys.executable, "-c", STORY], env=environment, cwd=EXAMPLE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "at first": [],
        "inside": ["send_alert"],
        "rolled back": [],
        "committed": ["send_alert"],
        "too much": 400,
        "read only": 405,
        "forged": 403,
        "minutes": 60,
        "with a reminder": ["send_alert", "send_reminder"],
        "page": True,
        "alerts": ["shop is down: HTTP 503", "shop is still down: HTTP 503"],
        "up again": ["send_alert"],
        "reminder": None,
        "number of alerts": 2,
        "of a site that is up": 404,
    }
