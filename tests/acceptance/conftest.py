"""Fixtures of the tests that drive a browser."""

from __future__ import annotations

from admin_pages import browser, site

__all__ = ["browser", "site"]
