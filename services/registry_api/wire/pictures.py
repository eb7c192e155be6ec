"""Answers requests for the pictures of clips, which workers draw."""

from fastapi import Request
from starlette.responses import Response

from services.registry_api.dependencies import Services
from services.registry_api.operations.pictures import ask_for_pictures, find_pictures, read_pictures
from services.registry_api.wire.answers import answer_with_bytes, answer_without_bytes, file_headers
from services.shared.model.pictures import Picture
from services.shared.model.records import Version
from services.shared.registry.speakers import FoundSpeaker

ASKED = "A worker was asked to draw it. Ask again in a moment. Nothing is drawn while no worker runs."
_SANDBOX = {"Content-Security-Policy": "default-src 'none'; sandbox"}
"""Policy that keeps scripts in SVG files from running. Our files have none, but anyone who can write to the
bucket could store one.
"""


def answer_with_picture(
    request: Request, services: Services, speaker: FoundSpeaker, version: Version, picture: Picture
) -> Response | None:
    """Return the answer to a request for a picture. If it is not drawn yet, ask workers for it and return
    None.

    Raises:
        AudioNotFound, PicturesFailed.
    """
    found = find_pictures(services.store, speaker.id, version, picture)
    for stored in found:
        headers = file_headers(f"sha256:{stored.sha256}", version) | _SANDBOX
        short = answer_without_bytes(request, headers, stored.size, picture.media_type)
        if short is not None:
            return short
    for stored, data in read_pictures(services.store, found):
        headers = file_headers(f"sha256:{stored.sha256}", version) | _SANDBOX
        return answer_with_bytes(request, data, headers, picture.media_type)
    ask_for_pictures(services.dispatcher, speaker.id, version)
    return None
