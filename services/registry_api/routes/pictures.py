"""The routes of pictures: the waveform and the mel spectrogram of a version's clip."""

from fastapi import Request
from starlette.responses import Response

from services.registry_api.access.rules import AUDIO_READ
from services.registry_api.dependencies import (
    AT_STORE,
    NamespaceDep,
    Reference,
    Services,
    ServicesDep,
    VoiceName,
)
from services.registry_api.wire.answers import answer
from services.registry_api.wire.documented import DocumentedRouter
from services.registry_api.wire.pictures import ASKED, answer_with_picture
from services.shared.model.pictures import Picture
from services.shared.registry.lookup import find_version
from speaker_registry.names import SpeakerName
from speaker_registry.schemas import PendingPicture

router = DocumentedRouter(prefix="/v1/voices/{name}/versions/{ref}", tags=["voices"])


@router.get("/waveform.svg", response_class=Response, dependencies=[AUDIO_READ, AT_STORE])
def get_waveform(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Download a picture of the waveform of a version's clip, as SVG.

    The picture is as high as the clip's peak, and has a line for each second. A worker draws it when it is
    asked for the first time: until then the answer is 202.
    """
    return _picture(request, services, namespace, name, ref, Picture.WAVEFORM)


@router.get("/mel.png", response_class=Response, dependencies=[AUDIO_READ, AT_STORE])
def get_mel(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Download a picture of the mel spectrogram of a version's clip, as PNG.

    It shows 80 dB below the loudest band, from 0 Hz to 12 kHz or half the clip's sample rate. A worker draws
    it when it is asked for the first time: until then the answer is 202. Only the scope `audio:read` allows
    this, because a spectrogram can be turned into speech.
    """
    return _picture(request, services, namespace, name, ref, Picture.MEL)


def _picture(
    request: Request,
    services: Services,
    namespace: str,
    name: SpeakerName,
    ref: int | str,
    picture: Picture,
) -> Response:
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, ref)
    found = answer_with_picture(request, services, speaker, version, picture)
    if found is not None:
        return found
    pending = PendingPicture(voice=version.name, version=version.number, picture=picture.value, reason=ASKED)
    return answer(request, pending, status=202, headers={"Retry-After": "1"})
