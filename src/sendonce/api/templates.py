"""`/templates`: what reminders say; a version never changes. `/template-previews` tries one out."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request, Response
from pydantic import ConfigDict, Field

from sendonce.api.idempotency import Done, once, said
from sendonce.api.pages import LIMIT, Cursor, Limit, Pages
from sendonce.api.program import MayRead, MaySchedule
from sendonce.api.routing import Resource
from sendonce.api.shapes import Asked, Instant, Said, instant
from sendonce.core.access import Scope
from sendonce.core.delivery import Channel
from sendonce.core.errors import InvalidInput
from sendonce.pipeline import templates
from sendonce.render import TemplateSource

resource = Resource("templates", "What reminders say.")

Version = Annotated[int, Query(ge=0, le=2**31, description="0 is the newest.")]


class EmailPart(Asked):
    """A subject, and text or HTML or both."""

    subject: str
    text: str = ""
    html: str = ""


class SmsPart(Asked):
    text: str


class TemplateAsked(Asked):
    """A version to be, for one channel or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "shipped",
                    "email": {
                        "subject": "Parcel {{ parcel }}",
                        "text": "Hello {{ name }}, it is on its way.",
                    },
                    "sms": {"text": "Parcel {{ parcel }} is on its way."},
                }
            ]
        }
    )

    name: str = Field(description="1 to 64 letters, digits, - and _.")
    email: EmailPart | None = None
    sms: SmsPart | None = None


class TemplateAdded(Said):
    """The version that now has the content; `new` false where it was there already."""

    name: str
    version: int
    new: bool
    channels: list[Channel]


class VersionSaid(Said):
    name: str
    version: int
    channel: Channel
    hash: str
    added_at: Instant


class TemplatesSaid(Said):
    templates: list[VersionSaid]
    next: str | None


class PartSaid(Said):
    channel: Channel
    subject: str
    text: str
    html: str
    hash: str
    added_at: Instant


class TemplateSaid(Said):
    name: str
    version: int
    parts: list[PartSaid]


class PreviewAsked(Asked):
    """Data to fill in."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"name": "shipped", "data": {"name": "Ann", "parcel": "A-17"}}]}
    )

    name: str
    version: int = Field(0, ge=0, description="0 is the newest.")
    data: dict[str, Any] = Field(default_factory=dict)
    reminder: str = "preview"
    customer: str = "customer"
    timezone: str = "UTC"


class RenderedSaid(Said):
    """One channel as it would go out; the last three for a text message."""

    channel: Channel
    subject: str
    text: str
    html: str
    parts: int | None = Field(description="Of the text message: what it costs.")
    units: int | None
    encoding: str | None


class PreviewSaid(Said):
    name: str
    version: int
    previews: list[RenderedSaid]


@resource.post("/templates", Scope.SCHEDULE, response_model=TemplateAdded)
def add_template(request: Request, asked: TemplateAsked, caller: MaySchedule) -> Response:
    """Add a version. The same content again adds none."""
    sources: dict[str, TemplateSource] = {}
    if asked.email is not None:
        part = asked.email
        sources["email"] = TemplateSource("email", subject=part.subject, text=part.text, html=part.html)
    if asked.sms is not None:
        sources["sms"] = TemplateSource("sms", text=asked.sms.text)
    if not sources:
        raise InvalidInput("a template needs email, sms, or both", field="email")

    def work() -> Done:
        added = templates.add_sources(
            caller.store, asked.name, sources, actor=caller.actor, tenant=caller.tenant
        )
        caller.program.app.book.refresh()  # whoever asks next means this one
        return said(
            TemplateAdded(
                name=added.name, version=added.version, new=added.new, channels=list(added.channels)
            )
        )

    return once(request, caller, work)


@resource.get("/templates", Scope.READ)
def list_templates(caller: MayRead, limit: Limit = LIMIT, cursor: Cursor = "") -> TemplatesSaid:
    """The versions of all templates, one line a channel; a page has up to `limit` versions."""
    pages = Pages(caller, "templates", {})
    after = pages.after(cursor)
    place = (str(after[0]), int(after[1])) if after else ("", 0)
    rows, beyond = caller.read(
        lambda tx: templates.versions(tx, tenant=caller.tenant, limit=limit, after=place)
    )
    return TemplatesSaid(
        templates=[
            VersionSaid(
                name=str(row["name"]),
                version=int(row["version"]),
                channel=Channel(str(row["channel"])),
                hash=str(row["hash"]),
                added_at=instant(int(row["added_at"])),
            )
            for row in rows
        ],
        next=pages.next(beyond),
    )


@resource.get("/templates/{name}", Scope.READ)
def read_template(
    name: Annotated[str, Path(max_length=200, examples=["shipped"])], caller: MayRead, version: Version = 0
) -> TemplateSaid:
    """A version as it was written."""
    parts = templates.show(caller.store, name, version, tenant=caller.tenant)
    return TemplateSaid(
        name=name,
        version=parts[0].version,
        parts=[
            PartSaid(
                channel=each.channel,
                subject=each.subject,
                text=each.text,
                html=each.html,
                hash=each.hash,
                added_at=instant(each.added_at),
            )
            for each in parts
        ],
    )


@resource.post("/template-previews", Scope.READ)
def preview_template(asked: PreviewAsked, caller: MayRead) -> PreviewSaid:
    """A version with data filled in, and what a text message of it costs. Nothing is kept, nothing sent."""
    found = templates.preview(
        caller.store,
        asked.name,
        asked.data,
        version=asked.version,
        reminder=asked.reminder,
        customer=asked.customer,
        timezone=asked.timezone,
        tenant=caller.tenant,
    )
    rendered = [
        RenderedSaid(
            channel=each.channel,
            subject=each.rendered.subject,
            text=each.rendered.text,
            html=each.rendered.html,
            parts=each.segments.parts if each.segments else None,
            units=each.segments.units if each.segments else None,
            encoding=each.segments.encoding if each.segments else None,
        )
        for each in found
    ]
    return PreviewSaid(name=asked.name, version=found[0].version, previews=rendered)
