"""The page that edits the description, labels, pin and promotion policy of a voice.

If the input is refused, the page shows it again. Two people who edit at the same time cannot overwrite each
other's text without having seen it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_WRITE
from services.registry_api.dependencies import (
    AT_STORE,
    CallerDep,
    NamespaceDep,
    Services,
    ServicesDep,
)
from services.registry_api.operations.edit import edit
from services.registry_api.pages.deleted import path_of
from services.registry_api.pages.forms import (
    MAX_FIELD,
    VoiceOfPage,
    checked_form,
    page_router,
    redirect_to,
    show,
    typed_text,
)
from services.registry_api.protocol.error_answers import status_of
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import tag_of
from services.registry_api.wire.fields import Fields
from services.registry_api.wire.forms import MAX_TEXT, parse_description
from services.registry_api.wire.uploads import limits_of
from services.shared.model.document import SpeakerDocument
from services.shared.registry.lookup import find
from speaker_registry.errors import (
    InvalidApiKey,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    SpeakerRegistryError,
)
from speaker_registry.labels import MAX_LABELS, MAX_LENGTH
from speaker_registry.names import SpeakerName
from speaker_registry.schemas import PromotionPolicy

router = page_router("/voices/{name}/about")
POLICIES: tuple[PromotionPolicy, ...] = get_args(PromotionPolicy)


@dataclass(frozen=True, slots=True)
class About:
    """The content of the form, either as it is saved or as a person typed it."""

    description: str
    labels: str
    """One label in each line, as `team=blue`."""
    pinned: bool
    promotion: str

    @classmethod
    def saved(cls, document: SpeakerDocument) -> "About":
        about = document.about
        labels = "\n".join(f"{key}={value}" if value else key for key, value in about.labels.items())
        return cls(about.description or "", labels, about.pinned, about.promotion)

    @classmethod
    def typed(cls, fields: Fields) -> "About":
        description, labels = (typed_text(fields, field) for field in ("description", "labels"))
        promotion = fields.text("promotion", max_length=MAX_FIELD) or "on_ready"
        return cls(description, labels, "pinned" in fields.names, promotion)

    @property
    def tag(self) -> str:
        """Return an ETag of the content, by which a change by another person is noticed. States of artifacts
        do not affect it.
        """
        return tag_of({"about": [self.description, self.labels, self.pinned, self.promotion]})

    def members(self) -> dict[str, str | bool | None]:
        """Return the members besides labels. Raises `InvalidRequest`."""
        if len(self.description) > MAX_TEXT:
            raise InvalidRequest(
                f"The description has {len(self.description)} characters; accepted: up to {MAX_TEXT}.",
                param="description",
            )
        if self.promotion not in POLICIES:
            raise InvalidRequest(
                f"The promotion policy is {self.promotion[:80]!a}; accepted: {' or '.join(POLICIES)}.",
                param="promotion",
            )
        description = parse_description(self.description)
        return {"description": description, "pinned": self.pinned, "promotion": self.promotion}


@router.get("", dependencies=[VOICES_WRITE])
def page_about(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage
) -> Response:
    """Show the form with what is saved."""
    document = find(services.speakers, namespace, name).document
    saved = About.saved(document)
    return _show_form(request, document, typed=saved, saved=saved)


@router.post("", dependencies=[VOICES_WRITE, AT_STORE])
async def page_edit(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage, caller: CallerDep
) -> Response:
    """Save the form and redirect to the voice, unless another change was saved after the form was loaded."""
    async with checked_form(request) as fields:
        typed, tag = About.typed(fields), fields.text("if_match", max_length=MAX_FIELD) or ""
    return await run_in_threadpool(_save, request, services, namespace, name, typed, tag, caller.id)


def _save(
    request: Request,
    services: Services,
    namespace: str,
    name: SpeakerName,
    typed: About,
    tag: str,
    by: str,
) -> Response:
    try:
        _edit(services, namespace, name, typed, tag, by)
    except (NotFound, InvalidApiKey):
        raise
    except SpeakerRegistryError as error:
        document = find(services.speakers, namespace, name).document
        return _show_refusal(request, document, typed=typed, tag=tag, error=error)
    return redirect_to(path_of(name.name))


def _edit(services: Services, namespace: str, name: SpeakerName, typed: About, tag: str, by: str) -> None:
    before = find(services.speakers, namespace, name).document
    wanted = _parse_labels(typed.labels)

    def check(document: SpeakerDocument) -> None:
        if About.saved(document).tag != tag:
            raise PreconditionFailed(
                "Somebody saved something else after this form was loaded. Nothing of yours was saved yet. "
                "What is saved now stands below the form. Saving again replaces it with what you typed.",
                param="if_match",
            )

    edit(
        services.speakers,
        services.profiles,
        namespace,
        name,
        labels={**dict.fromkeys(before.about.labels.keys() - wanted.keys()), **wanted},
        members=typed.members(),
        limits=limits_of(services.settings),
        by=by,
        check=check,
    )


def _show_refusal(
    request: Request, document: SpeakerDocument, *, typed: About, tag: str, error: SpeakerRegistryError
) -> Response:
    # Another person's text must be shown before it can be replaced. Without such a change, the form keeps
    # its tag.
    rival = isinstance(error, PreconditionFailed)
    return _show_form(
        request,
        document,
        typed=typed,
        saved=About.saved(document),
        tag=None if rival else tag,
        problem=error.message,
        rival=rival,
        status=status_of(error, compatible=False),
    )


def _parse_labels(text: str) -> dict[str, str]:
    """Parse one label from each line that is not blank. Raises `InvalidRequest` if a key is given twice."""
    found: dict[str, str] = {}
    for line in filter(None, map(str.strip, text.split("\n"))):
        key, _, value = (part.strip() for part in line.partition("="))
        if key in found:
            raise InvalidRequest(
                f"Label {key[:80]!a} is given twice; accepted: one line for each label.", param="labels"
            )
        found[key] = value
    return found


def _show_form(
    request: Request,
    document: SpeakerDocument,
    *,
    typed: About,
    saved: About,
    tag: str | None = None,
    problem: str | None = None,
    rival: bool = False,
    status: int = 200,
) -> Response:
    values: Mapping[str, Any] = {
        "name": document.default.name,
        "voice_id": rendering.voice_id(document),
        "typed": typed,
        "saved": saved if rival else None,
        "tag": saved.tag if tag is None else tag,
        "problem": problem,
        "max_text": MAX_TEXT,
        "max_labels": MAX_LABELS,
        "max_length": MAX_LENGTH,
    }
    return show(request, "about.html", status=status, **values)
