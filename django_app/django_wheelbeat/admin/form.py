"""The form of a monitor; uses the engine's validation, so the beat can run every monitor that it accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django import forms
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.utils.translation import gettext_lazy as _

from celery_wheelbeat.jobs.rows import definition_hash
from celery_wheelbeat.jobs.validation import SOLAR_EVENTS
from celery_wheelbeat.schedules import zones
from django_wheelbeat.admin.known_tasks import offered_tasks
from django_wheelbeat.admin.preview import PREVIEW_FIELDS, SCHEDULE_FIELDS
from django_wheelbeat.database.actors import REASON_LENGTH
from django_wheelbeat.models import Monitor
from django_wheelbeat.monitors.form_fields import (
    EXPIRES_NEXT,
    CodeTextarea,
    DatalistInput,
    DurationField,
    ExpiresField,
    TagsField,
)
from django_wheelbeat.monitors.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import QueryDict

KIND_FIELDS = ("interval_ms", "cron", "once_at", "solar_event")
"""Exactly one of these is set."""

ROUTING_FIELDS = ("queue", "exchange", "routing_key", "priority", "expires_s", "headers", "options")

NO_COLUMNS = ("change_reason", "definition_read")

EMPTY_JSON = {"args": "[]", "kwargs": "{}", "headers": "{}", "options": "{}"}


class MonitorForm(forms.ModelForm):
    """Add and change form of ``Monitor``; fields are named like columns, so errors appear at their fields."""

    interval_ms = DurationField(required=False, label=_("Interval"), help_text=_("For example 90s, 5m or 1h30m."))
    incident_interval_ms = DurationField(
        required=False,
        label=_("Incident interval"),
        help_text=_("Replaces the schedule until the end of the incident; must be shorter than the interval."),
    )
    expires_s = ExpiresField(
        required=False,
        label=_("Expires"),
        help_text=_("Seconds, a duration such as 5m, or “next”: a message is dropped once the following run is due."),
    )
    solar_event = forms.ChoiceField(
        required=False,
        label=_("Solar event"),
        choices=[("", "–"), *((event, event.replace("_", " ")) for event in SOLAR_EVENTS)],
    )
    tags = TagsField(required=False, max_length=255, label=_("Tags"), help_text=_("Separated by commas."))
    change_reason = forms.CharField(
        required=False,
        max_length=REASON_LENGTH,
        label=_("Reason for this change"),
        help_text=_("Stored with the change and your name."),
        widget=forms.TextInput({"class": "vTextField"}),
    )

    definition_read = forms.CharField(required=False, max_length=64, widget=forms.HiddenInput)
    """Hash of the row that the form shows; an edit must not overwrite a later one."""

    refused: ClassVar[str] = ""
    """Reason why the database has just refused this form; it is shown again with this error."""

    class Meta:
        model = Monitor
        exclude = ("expires_next",)
        widgets: ClassVar = {
            "task": DatalistInput(offered_tasks, {"class": "vTextField"}),
            "timezone": DatalistInput(lambda: sorted(zones.names()), {"class": "vTextField"}),
            "cron": forms.TextInput({"class": "vTextField wheelbeat-code", "spellcheck": "false"}),
            "day_rule": forms.RadioSelect,
            "args": CodeTextarea(),
            "kwargs": CodeTextarea(),
            "headers": CodeTextarea(rows=2),
            "options": CodeTextarea(rows=2),
        }
        help_texts: ClassVar = {
            "task": _("Name of a registered Celery task."),
            "args": _("JSON list."),
            "kwargs": _("JSON object."),
            "headers": _("JSON object of message headers."),
            "options": _("JSON object of further apply_async options."),
            "cron": _("Five fields “minute hour day month weekday”, or @hourly, @daily, @weekly, @monthly, @yearly."),
            "day_rule": _("How the day of month and the weekday combine when both are restricted."),
            "timezone": _("Cron expressions follow the wall clock of this zone."),
            "once_at": _("A single run at this time."),
            "jitter_s": _(
                "Empty: spread over the interval, or within the minute. 0: exactly on the grid. n: within n seconds."
            ),
            "start_at": _("No run before this time; intervals count from it."),
            "end_at": _("No run at or after this time."),
            "one_off": _("Done after its first confirmed run."),
            "misfire": _("What happens to runs that were missed while no beat was running."),
            "overlap": _("Whether a run may start while the previous one is still executing."),
            "pause_reason": _("Why it is disabled; shown in the list."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "timezone" in self.fields:  # the row has the initial value; no hidden copy needed
            self.fields["timezone"].show_hidden_initial = False
        for field in self.fields.values():
            if isinstance(field.widget, forms.SplitDateTimeWidget):
                _name_halves(field)
        if self.instance.expires_next:
            self.initial["expires_s"] = EXPIRES_NEXT
        if self.instance.pk is not None:
            self.initial["definition_read"] = definition_hash(row_of(self.instance))

    def clean(self) -> dict[str, Any]:
        """Split ``expires`` into its two columns and replace blank JSON fields by their empty value."""
        cleaned = super().clean() or self.cleaned_data
        if "expires_s" in cleaned:
            self.instance.expires_next = cleaned["expires_s"] == EXPIRES_NEXT
            if self.instance.expires_next:
                cleaned["expires_s"] = None
        for name, empty in EMPTY_JSON.items():
            if name in cleaned:
                cleaned[name] = cleaned[name].strip() or empty
        if self.refused:
            raise ValidationError(self.refused, code="refused")
        self._refuse_stale(cleaned.get("definition_read"))
        return cleaned

    def _refuse_stale(self, read: str | None) -> None:
        stored = self.initial.get("definition_read")
        if read and stored and read != stored:
            self.data = self.data.copy()  # submitting again overwrites what is stored now
            self.data[self.add_prefix("definition_read")] = stored
            raise ValidationError(
                _(
                    "This monitor has been changed since you opened it (see its history). Nothing was saved; save "
                    "again to overwrite that change."
                ),
                code="stale",
            )

    def full_clean(self) -> None:
        """Set ``schedule_refused`` on the instance if the typed schedule is invalid; no preview is shown then."""
        super().full_clean()
        self.instance.schedule_refused = not self.errors.keys().isdisjoint(SCHEDULE_FIELDS)

    @property
    def changed_data(self) -> list[str]:
        """Return the changed columns, without the fields of NO_COLUMNS."""
        return [name for name in super().changed_data if name not in NO_COLUMNS]

    def add_error(self, field: str | None, error: Any) -> None:
        """Show errors of columns without a field above the form, instead of raising as Django does.

        A value that could not be parsed is missing in the instance; further errors about that column are dropped.
        """
        if field is None and isinstance(error, ValidationError) and hasattr(error, "error_dict"):
            unread = set(self.errors)
            if not unread.isdisjoint(KIND_FIELDS):
                unread.update(KIND_FIELDS)
            placed: dict[str, list[ValidationError]] = {}
            for name, errors in error.error_dict.items():
                home = "expires_s" if name == "expires_next" else name
                if home in unread:
                    continue
                placed.setdefault(home if home in self.fields else NON_FIELD_ERRORS, []).extend(errors)
            error = ValidationError(placed)
        super().add_error(field, error)


def showable(form_class: type[forms.ModelForm], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``given``, the query string of an add form, that the form can show.

    Django passes the texts to the widgets unread, and some widgets raise what they do not expect.
    """
    read = {name: _read(form_class, name, value) for name, value in given.items()}
    return {name: value for name, value in read.items() if value is not None}


def _read(form_class: type[forms.ModelForm], name: str, value: Any) -> Any:
    """Return one value as the field's widget can show it; None if it cannot."""
    field = form_class.base_fields.get(name)
    try:
        if isinstance(field, forms.SplitDateTimeField):
            value = forms.DateTimeField().clean(value)
        if field is not None:
            str(form_class(initial={name: value})[name])
    except Exception:  # of any widget
        return None
    return value


def _name_halves(field: forms.Field) -> None:
    """Label the date and time inputs of an instant for screen readers; Django labels neither."""
    date, time = field.widget.widgets
    date.attrs["aria-label"] = _("%(field)s: date") % {"field": field.label}
    time.attrs["aria-label"] = _("%(field)s: time") % {"field": field.label}


class PreviewForm(MonitorForm):
    """Form with only the fields of the preview; the row need not exist. Runs no query."""

    tags = change_reason = definition_read = expires_s = None

    class Meta(MonitorForm.Meta):
        exclude = None
        fields = PREVIEW_FIELDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["task"].required = False

    @classmethod
    def of_query(cls, query: QueryDict) -> PreviewForm:
        """Return the form for a query string; ``monitor`` is the primary key, which determines the jitter offset."""
        key = query.get("monitor", "")
        is_key = key.isascii() and key.isdigit() and len(key) < 19
        return cls(query, instance=Monitor(pk=int(key) if is_key else None))

    def _post_clean(self) -> None:
        """Only fill the instance: the preview validates the row itself, and uniqueness would need a query."""
        forms.models.construct_instance(self, self.instance, self.fields)
