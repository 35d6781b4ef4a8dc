"""URLs: the status page at the root, the admin under ``/admin/``."""

from django.contrib import admin
from django.urls import path

from uptime.views import remind_view, status_page

urlpatterns = [
    path("", status_page, name="status"),
    path("remind/<int:monitor_id>/", remind_view, name="remind"),
    path("admin/", admin.site.urls),
]
