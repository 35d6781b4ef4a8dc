"""What the pages of bulk actions ask for. Each form turns what was typed into the operation that is applied."""

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
from django_wheelbeat.bulk.operations import EMPTIED, Delete, Edit, EndIncident, Pause, Resume, SpeedUp, expiry_columns
from django_wheelbeat.database.actors import REASON_LENGTH
from django_wheelbeat.monitors.form_fields import DatalistInput, DurationField, ExpiresField, TagsField
from django_wheelbeat.monitors.incidents import incident_end

if TYPE_CHECKING:
    from django_wheelbeat.bulk.operations import Operation

_TEXT = {"class": "vTextField"}


class ReasonField(forms.CharField):
    """Why something is done: kept with the change, beside the name of the user."""

    def __init__(self, **kwargs: Any) -> None:
        defaults = {
            "max_length": REASON_LENGTH,
            "label": gettext_lazy("Reason"),
            "help_text": gettext_lazy("Kept with the change, beside your name."),
            "widget": forms.TextInput(_TEXT),
        }
        super().__init__(**(defaults | kwargs))


class OperationForm(forms.Form):
    """A form of a bulk action. ``total`` is how many monitors it is about, None once it has been confirmed.

    ``within``: the monitors that the user may see, a queryset; its values are offered.
    """

    def __init__(self, *args: Any, total: int | None = None, within: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = total
        self.within = within

    @staticmethod
    def concerned(monitors: Any) -> Any:
        """Keep the monitors that it is about, as far as that is known before anything was typed."""
        return monitors

    def operation(self) -> Operation:
        """Return what was asked for; only of a valid form."""
        raise NotImplementedError

    def carried(self) -> QueryDict:
        """Return what was typed, for the later steps of a walk; only of a valid form."""
        data = QueryDict(mutable=True)
        for name in self.fields.keys() & self.data.keys():
            data.setlist(name, self.data.getlist(name))
        return data


class PauseForm(OperationForm):
    """Why monitors are disabled."""

    reason = ReasonField(
        help_text=gettext_lazy("Shown in the list and kept with the change, beside your name."),
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
    """Why monitors are enabled again, if somebody wants to say it."""

    reason = ReasonField(required=False)

    @staticmethod
    def concerned(monitors: Any) -> Any:
        """See ``OperationForm``."""
        return monitors.filter(enabled=False)

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        return Resume(self.cleaned_data["reason"])


class DeleteForm(OperationForm):
    """The exact number of monitors, typed."""

    typed = forms.CharField(
        label=gettext_lazy("Number of monitors"),
        help_text=gettext_lazy("Type the number above, to show that you have seen it."),
        widget=forms.TextInput({"autofocus": True, "inputmode": "numeric", "autocomplete": "off"}),
    )
    reason = ReasonField(required=False)

    def clean_typed(self) -> str:
        """Compare with the number as it is now, which may be another one than the page has shown."""
        typed = "".join(filter(str.isalnum, self.cleaned_data["typed"]))
        if self.total is not None and typed != str(self.total):
            raise ValidationError(
                _("These are %(total)d monitors now; nothing was deleted."), "total", {"total": self.total}
            )
        return typed

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        return Delete(self.cleaned_data["reason"])


class EditForm(OperationForm):
    """New values for some columns; what is left empty stays as it is."""

    interval_ms = DurationField(
        required=False,
        label=gettext_lazy("Interval"),
        help_text=gettext_lazy("For example 90s, 5m or 1h30m; of interval monitors only."),
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
        required=False, label=gettext_lazy("Expires"), help_text=gettext_lazy("Seconds, a span such as 5m, or “next”.")
    )
    tags_added = TagsField(
        required=False, max_length=255, label=gettext_lazy("Add tags"), help_text=gettext_lazy("Separated by commas.")
    )
    tags_removed = TagsField(required=False, max_length=255, label=gettext_lazy("Remove tags"))
    emptied = forms.MultipleChoiceField(
        required=False,
        label=gettext_lazy("Take away"),
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
        """Refuse to change nothing, and to set and take away the same."""
        cleaned = super().clean() or self.cleaned_data
        if self.errors:
            return cleaned
        for name in cleaned["emptied"]:
            if cleaned.get(name) not in (None, ""):
                self.add_error(name, _("Either set it or take it away."))
        asked = [name for name in self.fields if name != "reason" and cleaned.get(name) not in (None, "", [])]
        if not asked:
            raise ValidationError(_("Nothing would change: fill at least one field."), code="empty")
        return cleaned

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        cleaned = self.cleaned_data
        values: dict[str, Any] = {}
        for name in cleaned["emptied"]:
            values |= EMPTIED[name]
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
    """How often, and for how long."""

    every = DurationField(
        label=gettext_lazy("Interval"), help_text=gettext_lazy("Shorter than their own, for example 10s.")
    )
    end = forms.CharField(
        max_length=40,
        label=gettext_lazy("For"),
        initial="30m",
        help_text=gettext_lazy("A span such as 30m or 2h; then they return to their schedule by themselves."),
    )
    reason = ReasonField(required=False)

    def clean_end(self) -> datetime:
        """Turn the span into an instant once; the later steps of a walk bring that instant."""
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
    """Why incidents end early, if somebody wants to say it."""

    reason = ReasonField(required=False)

    @staticmethod
    def concerned(monitors: Any) -> Any:
        """See ``OperationForm``."""
        return monitors.filter(incident_until__isnull=False)

    def operation(self) -> Operation:
        """See ``OperationForm``."""
        return EndIncident(self.cleaned_data["reason"])
