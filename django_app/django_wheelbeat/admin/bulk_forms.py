"""Forms of the bulk actions; each converts the typed values to an operation of ``bulk.operations``."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from celery_wheelbeat.errors import WheelbeatError
from celery_wheelbeat.schedules import zones
from celery_wheelbeat.schedules.durations import parse_duration
from django_wheelbeat.admin.known_tasks import values_in_use
from django_wheelbeat.bulk.operations import CLEARED, Delete, Edit, EndIncident, Pause, Resume, SpeedUp, expiry_columns
from django_wheelbeat.database.actors import REASON_LENGTH
from django_wheelbeat.monitors.form_fields import DatalistInput, DurationField, ExpiresField, TagsField
from django_wheelbeat.monitors.incidents import incident_end

if TYPE_CHECKING:
    from django_wheelbeat.bulk.operations import Operation

_TEXT = {"class": "vTextField"}


class ReasonField(forms.CharField):
    """Reason of a change, stored with it next to the user's name."""

    def __init__(self, **kwargs: Any) -> None:
        defaults = {
            "max_length": REASON_LENGTH,
            "label": gettext_lazy("Reason"),
            "help_text": gettext_lazy("Stored with the change and your name."),
            "widget": forms.TextInput(_TEXT),
        }
        super().__init__(**(defaults | kwargs))


class OperationForm(forms.Form):
    """Base of the forms. ``total``: number of monitors concerned, None after the confirmation.

    ``within``: queryset of the monitors that the user may see; their values are offered for completion.
    """

    def __init__(self, *args: Any, total: int | None = None, within: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = total
        self.within = within

    @staticmethod
    def concerned(monitors: Any) -> Any:
        """Return the monitors that the action may change, as far as known without the typed values."""
        return monitors

    def operation(self) -> Operation:
        """Return the operation; the form must be valid."""
        raise NotImplementedError

    def carried(self) -> QueryDict:
        """Return the typed values for the later steps of the pass; the form must be valid."""
        data = QueryDict(mutable=True)
        for name in self.fields.keys() & self.data.keys():
            data.setlist(name, self.data.getlist(name))
        return data


class PauseForm(OperationForm):
    """Reason for disabling monitors."""

    reason = ReasonField(
        help_text=gettext_lazy("Shown in the list, and stored with the change and your name."),
        widget=forms.TextInput({**_TEXT, "autofocus": True}),
    )

    @staticmethod
    def concerned(monitors: Any) -> Any:
        """See ``OperationForm``."""
        return monitors.filter(enabled=True)

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        return Pause(self.cleaned_data["reason"])


class ResumeForm(OperationForm):
    """Optional reason for enabling monitors."""

    reason = ReasonField(required=False)

    @staticmethod
    def concerned(monitors: Any) -> Any:
        """See ``OperationForm``."""
        return monitors.filter(enabled=False)

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        return Resume(self.cleaned_data["reason"])


class DeleteForm(OperationForm):
    """Asks for the exact number of monitors as a confirmation."""

    typed = forms.CharField(
        label=gettext_lazy("Number of monitors"),
        help_text=gettext_lazy("Type the number shown above to confirm."),
        widget=forms.TextInput({"autofocus": True, "inputmode": "numeric", "autocomplete": "off"}),
    )
    reason = ReasonField(required=False)

    def clean_typed(self) -> str:
        """Compare with the current number, which may differ from the one shown on the page."""
        typed = "".join(filter(str.isalnum, self.cleaned_data["typed"]))
        if self.total is not None and typed != str(self.total):
            raise ValidationError(
                _("The selection now has %(total)d monitors; nothing was deleted."), "total", {"total": self.total}
            )
        return typed

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        return Delete(self.cleaned_data["reason"])


class EditForm(OperationForm):
    """New values for some columns; empty fields leave their columns unchanged."""

    interval_ms = DurationField(
        required=False,
        label=gettext_lazy("Interval"),
        help_text=gettext_lazy("For example 90s, 5m or 1h30m; changes interval monitors only."),
    )
    timezone = forms.CharField(
        required=False,
        max_length=64,
        label=gettext_lazy("Time zone"),
        widget=DatalistInput(lambda: sorted(zones.names()), _TEXT),
    )
    queue = forms.CharField(
        required=False,
        max_length=200,
        label=gettext_lazy("Queue"),
        widget=DatalistInput(list, _TEXT),
    )
    priority = forms.IntegerField(required=False, min_value=0, max_value=255, label=gettext_lazy("Priority"))
    expires = ExpiresField(
        required=False,
        label=gettext_lazy("Expires"),
        help_text=gettext_lazy("Seconds, a duration such as 5m, or “next”."),
    )
    tags_added = TagsField(
        required=False, max_length=255, label=gettext_lazy("Add tags"), help_text=gettext_lazy("Separated by commas.")
    )
    tags_removed = TagsField(required=False, max_length=255, label=gettext_lazy("Remove tags"))
    cleared = forms.MultipleChoiceField(
        required=False,
        label=gettext_lazy("Clear these fields"),
        choices=[
            ("queue", gettext_lazy("queue")),
            ("priority", gettext_lazy("priority")),
            ("expires", gettext_lazy("expiry")),
            ("tags", gettext_lazy("all tags")),
        ],
        widget=forms.CheckboxSelectMultiple,
    )
    reason = ReasonField(required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["queue"].widget.offered = partial(values_in_use, "queue", within=self.within)

    def clean(self) -> dict[str, Any]:
        """Raise if nothing would change, or if a column is both set and cleared."""
        cleaned = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        for name in cleaned["cleared"]:
            if cleaned.get(name) not in (None, ""):
                self.add_error(name, _("Set this field or clear it, not both."))
        asked = [name for name in self.fields if name != "reason" and cleaned.get(name) not in (None, "", [])]
        if not asked:
            raise ValidationError(_("Nothing would change: fill in at least one field."), code="empty")
        return cleaned

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        cleaned = self.cleaned_data
        values: dict[str, Any] = {}
        for name in cleaned["cleared"]:
            values |= CLEARED[name]
        for name in ("interval_ms", "timezone", "queue", "priority"):
            if cleaned[name] not in (None, ""):
                values[name] = cleaned[name]
        if cleaned["expires"] is not None:
            values |= expiry_columns(cleaned["expires"])
        return Edit(
            cleaned["reason"],
            values,
            frozenset(filter(None, cleaned["tags_added"].split(","))),
            frozenset(filter(None, cleaned["tags_removed"].split(","))),
        )


class SpeedUpForm(OperationForm):
    """Interval and duration of an incident."""

    every = DurationField(
        label=gettext_lazy("Interval"), help_text=gettext_lazy("Shorter than their own, for example 10s.")
    )
    end = forms.CharField(
        max_length=40,
        label=gettext_lazy("For"),
        initial="30m",
        help_text=gettext_lazy("A duration such as 30m or 2h; afterwards the monitors return to their schedules."),
    )
    reason = ReasonField(required=False)

    def clean_end(self) -> datetime:
        """Convert the duration to an instant once; later steps of the pass carry that instant."""
        text = self.cleaned_data["end"]
        try:
            until = datetime.fromisoformat(text) if "T" in text else timedelta(milliseconds=parse_duration(text))
            return incident_end(until).astimezone(UTC)
        except (WheelbeatError, ValueError, OverflowError) as refusal:
            raise ValidationError(str(refusal), code="invalid") from refusal

    def carried(self) -> QueryDict:
        """See ``OperationForm``."""
        data = super().carried()
        data["end"] = self.cleaned_data["end"].isoformat()
        return data

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        cleaned = self.cleaned_data
        return SpeedUp(cleaned["reason"], cleaned["every"], cleaned["end"])


class EndIncidentForm(OperationForm):
    """Optional reason for ending incidents early."""

    reason = ReasonField(required=False)

    @staticmethod
    def concerned(monitors: Any) -> Any:
        """See ``OperationForm``."""
        return monitors.filter(incident_until__isnull=False)

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        return EndIncident(self.cleaned_data["reason"])
