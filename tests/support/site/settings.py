"""Settings of the tests that need Django. ``WHEELBEAT_TEST_DATABASE`` is the URL of the database."""

from __future__ import annotations

import os
from urllib.parse import unquote, urlsplit

ENGINES = {
    "postgresql": "django.db.backends.postgresql",
    "mysql": "django.db.backends.mysql",
    "sqlite": "django.db.backends.sqlite3",
}


def database_of(url: str) -> dict[str, object]:
    """Translate ``vendor://user:password@host:port/name`` (``sqlite:///path``) into an entry of ``DATABASES``."""
    parts = urlsplit(url)
    name = unquote(parts.path[1:])
    return {
        "ENGINE": ENGINES[parts.scheme],
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


SECRET_KEY = "only for tests"
DATABASES = {"default": database_of(os.environ.get("WHEELBEAT_TEST_DATABASE", "sqlite:///:memory:"))}
USE_TZ = os.environ.get("WHEELBEAT_TEST_USE_TZ", "1") == "1"
TIME_ZONE = os.environ.get("WHEELBEAT_TEST_TIME_ZONE", "UTC")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "support.site.urls"
DEBUG = False
ALLOWED_HOSTS = ["*"]
STATIC_URL = "/static/"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_wheelbeat",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
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
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
