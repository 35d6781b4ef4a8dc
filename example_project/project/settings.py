"""Settings of the example project.

Embedded by default: SQLite, and kombu's filesystem transport as the broker; no server has to be installed.
``WHEELBEAT_EXAMPLE=services`` switches to PostgreSQL and Redis (or, through ``WHEELBEAT_EXAMPLE_BROKER``, RabbitMQ).
"""

import os
from datetime import timedelta
from pathlib import Path

from kombu.transport import TRANSPORT_ALIASES

BASE_DIR = Path(__file__).resolve().parent.parent
VAR = Path(os.environ.get("WHEELBEAT_EXAMPLE_VAR", BASE_DIR / "var"))
VAR.mkdir(parents=True, exist_ok=True)
ON_SERVICES = os.environ.get("WHEELBEAT_EXAMPLE", "embedded") == "services"

SECRET_KEY = "an example that listens on loopback only"  # noqa: S105 - not a secret
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_wheelbeat",
    "uptime",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

if ON_SERVICES:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": os.environ.get("PGHOST", "127.0.0.1"),
            "PORT": os.environ.get("PGPORT", "5432"),
            "USER": os.environ.get("PGUSER", "postgres"),
            "PASSWORD": os.environ.get("PGPASSWORD", ""),
            "NAME": os.environ.get("PGDATABASE", "wheelbeat_example"),
        }
    }
    CELERY_BROKER_URL = os.environ.get("WHEELBEAT_EXAMPLE_BROKER", "redis://127.0.0.1:6379/0")
    CELERY_WHEELBEAT_DEDUP_URL = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**DATABASES["default"])
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": VAR / "example.sqlite3",
            # Web server, workers and beat share one file: with WAL readers do not block, and writers wait in turn.
            "OPTIONS": {
                "timeout": 20,
                "transaction_mode": "IMMEDIATE",
                "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
            },
        }
    }
    CELERY_WHEELBEAT_DEDUP_URL = f"sqlite:///{VAR / 'example.sqlite3'}"
    MESSAGES = VAR / "broker"
    CONTROL = VAR / "control"
    for _folder in (MESSAGES, CONTROL):
        _folder.mkdir(exist_ok=True)
    TRANSPORT_ALIASES["filesystem"] = "project.folder_broker:Transport"
    CELERY_BROKER_URL = "filesystem://"
    CELERY_BROKER_TRANSPORT_OPTIONS = {
        "data_folder_in": str(MESSAGES),
        "data_folder_out": str(MESSAGES),
        "control_folder": str(CONTROL),
        "polling_interval": 0.1,
    }

DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TIME_ZONE = "UTC"
STATIC_URL = "static/"

CELERY_TASK_IGNORE_RESULT = True
"""``check_url`` stores its findings itself, so Celery's results are not needed. Without a result backend, the claims by
which workers drop duplicate messages need a store of their own: ``CELERY_WHEELBEAT_DEDUP_URL``.
"""
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULE = {
    # Entries in code and monitors in the admin run side by side.
    "forget-old-checks": {"task": "uptime.tasks.forget_old_checks", "schedule": timedelta(minutes=10)},
}
