"""Files in the admin: export of a selection, and the import page, with a dry run first.

Uploads are bounded in bytes and lines; larger files need ``manage.py wheelbeat_import``. The server does not keep the
upload after the dry run, so the user selects the file again to import it.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import router
from django.http import HttpResponseRedirect, StreamingHttpResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from django_wheelbeat.admin.bulk_forms import ReasonField
from django_wheelbeat.admin.pages import admin_page
from django_wheelbeat.transfer.files import CONTENT_TYPES, export, format_of, read
from django_wheelbeat.transfer.imports import Importer, import_all

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from django_wheelbeat.transfer.imports import Report

LINES_MAX = 50_000
BYTES_MAX = 50 * 1024 * 1024


class ImportForm(forms.Form):
    """A file, and whether this is a dry run."""

    file = forms.FileField(
        label=gettext_lazy("File"), help_text=gettext_lazy("JSON lines, or CSV (.csv), as exported here; UTF-8.")
    )
    reason = ReasonField(required=False)
    skip_errors = forms.BooleanField(
        required=False, label=gettext_lazy("Import the valid lines even if others have errors")
    )

    def clean_file(self) -> Any:
        """Check the size of the file and decode it."""
        file = self.cleaned_data["file"]
        if file.size > BYTES_MAX:
            raise ValidationError(
                _("The file has more than %(most)d MB: use manage.py wheelbeat_import."), "size", {"most": 50}
            )
        try:
            text = file.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValidationError(_("The file is not UTF-8 text: %(error)s"), "encoding", {"error": error}) from error
        if text.count("\n") > LINES_MAX:
            raise ValidationError(
                _("The file has more than %(most)d lines: use manage.py wheelbeat_import."),
                "lines",
                {"most": LINES_MAX},
            )
        self.text, self.form = text, format_of(file.name)
        return file


class TransferPageMixin:
    """Adds import and export to a ``ModelAdmin`` of monitors."""

    def get_urls(self) -> list[Any]:
        """Add the URL of the page."""
        view = self.admin_site.admin_view(require_http_methods(["GET", "POST"])(self.import_view))
        return [path("import/", view, name="wheelbeat_monitor_import"), *super().get_urls()]

    def import_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a file; show its differences, or apply them."""
        if not self.has_import_permission(request):
            raise PermissionDenied
        form = ImportForm(request.POST, request.FILES) if request.method == "POST" else ImportForm()
        report, applied = None, False
        if form.is_valid():
            importer = Importer(
                router.db_for_write(self.model),
                request.user.get_username(),
                form.cleaned_data["reason"] or _("import"),
                within=self.get_queryset(request),
            )
            report, applied = import_all(
                importer,
                lambda: read(io.StringIO(form.text, newline=""), form.form),
                dry_run="import" not in request.POST,
                despite_errors=form.cleaned_data["skip_errors"],
            )
            if applied:
                self._note_import(request, report, importer.reason)
                text = _(
                    "Monitors added: %(new)d, changed: %(changed)d, unchanged: %(same)d; lines with errors: %(bad)d."
                )
                values = {"new": report.created, "changed": report.changed, "same": report.unchanged}
                self.message_user(request, text % (values | {"bad": report.refused}), messages.SUCCESS)
                if not report.refused:
                    return HttpResponseRedirect(reverse(f"{self.admin_site.name}:wheelbeat_monitor_changelist"))
        context = {
            "title": _("Import monitors"),
            "form": form,
            "report": report,
            "applied": applied,
        }
        return admin_page(self, request, "import", context)

    def _note_import(self, request: HttpRequest, report: Report, reason: str) -> None:
        """Write one entry for the whole import to Django's history; the audit has each change."""
        count = report.created + report.changed
        if not count:
            return
        summary = _("Imported: %(new)d new, %(changed)d changed.") % {"new": report.created, "changed": report.changed}
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=ContentType.objects.get_for_model(self.model),
            object_repr=f"{count} {self.opts.verbose_name_plural}",
            action_flag=CHANGE if report.changed else ADDITION,
            change_message=f"{summary} {reason}",
        )


def _exported(queryset: Any, form: str) -> StreamingHttpResponse:
    headers = {"Content-Disposition": f'attachment; filename="monitors.{form}"'}
    return StreamingHttpResponse(export(queryset, form), content_type=CONTENT_TYPES[form], headers=headers)


@admin.action(permissions=["view"], description=gettext_lazy("Export selected monitors as JSON lines"))
def export_as_json_lines(_modeladmin: Any, _request: HttpRequest, queryset: Any) -> StreamingHttpResponse:
    """Stream the selection."""
    return _exported(queryset, "jsonl")


@admin.action(permissions=["view"], description=gettext_lazy("Export selected monitors as CSV"))
def export_as_csv(_modeladmin: Any, _request: HttpRequest, queryset: Any) -> StreamingHttpResponse:
    """Stream the selection."""
    return _exported(queryset, "csv")
