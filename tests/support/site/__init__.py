"""A Django site with the admin: settings, URLs, databases, a browser."""
