"""Read-only admin of checks; monitors are edited in celery-wheelbeat's own admin."""

from django.contrib import admin

from .models import Check


@admin.register(Check)
class CheckAdmin(admin.ModelAdmin):
    """History of checks."""

    list_display = ["monitor", "fire_at", "up", "latency_ms", "late_ms", "error"]
    list_filter = ["up"]
    list_select_related = ["monitor"]
    search_fields = ["monitor__name"]
    date_hierarchy = "fire_at"

    def has_add_permission(self, request):
        return False

    def has_change_permission(self, request, obj=None):
        return False

    def has_delete_permission(self, request, obj=None):
        return False
