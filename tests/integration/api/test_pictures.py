"""Tests of the pictures of clips over HTTP: who draws them, how they are kept, and when they are gone."""

import re
from datetime import timedelta
from pathlib import Path

import httpx
import pytest

from services.extractor_worker.features.pictures import draw
from services.registry_api.maintenance.erase import erase
from services.shared.audio import ReferenceAudio
from services.shared.model.speaker import SpeakerId
from services.shared.queue.rq_jobs import PICTURES_QUEUE, JobQueue
from speaker_registry import RegistryClient
from speaker_registry.errors import InvalidAudio
from tests.integration.api.conftest import Start
from tests.integration.api.drawing import Drawn, draw_all
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import EMBEDDING, Registry
from tests.unit.audio import clips

WAVEFORM, MEL = "waveform.svg", "mel.png"


def ask(registry: Registry, name: str, picture: str = WAVEFORM, **options: str) -> httpx.Response:
    return registry.client.get(f"/v1/voices/{name}/versions/1/{picture}", headers=options)


def files(registry: Registry, name: str) -> list[Path]:
    found = (registry.folder / "default/d" / name).rglob("*.*.*")
    return sorted(path for path in found if path.name.endswith((WAVEFORM, MEL)))


def lose_clip(registry: Registry, name: str) -> dict[Path, bytes]:
    """Delete the files of a clip. Returns what they held."""
    stored = (registry.folder / "default/d" / name).rglob("*")
    clip = {file: file.read_bytes() for file in stored if file.name in {"clip", "rendition"}}
    for file in clip:
        file.unlink()
    return clip


def erase_at_once(registry: Registry, name: str) -> None:
    """Erase what was deleted, as if its grace period were over."""
    erase(
        registry.opened.speakers,
        registry.opened.blobs,
        SpeakerId("default", name),
        grace=timedelta(seconds=-5),
    )


def test_a_picture_is_drawn_when_it_is_requested_for_the_first_time(registry: Registry, name: str):
    """Voices that nobody looks at cost no drawing. Both pictures come from one job, however often they are
    requested meanwhile.
    """
    registry.upload(name)
    for picture in (WAVEFORM, MEL, MEL):
        answer = ask(registry, name, picture)
        assert (answer.status_code, answer.headers["Retry-After"]) == (202, "1")
        assert answer.json()["picture"] == picture
        assert "A worker was asked to draw it." in answer.json()["reason"]
    assert registry.redis.llen(f"rq:queue:{PICTURES_QUEUE}") == 1
    assert draw_all(registry)
    svg, png = ask(registry, name), ask(registry, name, MEL)
    assert svg.headers["Content-Type"] == "image/svg+xml"
    assert "<title>Waveform: 1.2 seconds, peak " in svg.text
    assert (png.headers["Content-Type"], png.content[:4]) == ("image/png", b"\x89PNG")
    assert not draw_all(registry)


def test_a_picture_is_kept_by_its_digest(registry: Registry, name: str):
    """Caches ask again with the ETag, as for clips and artifacts."""
    registry.upload(name)
    ask(registry, name)
    draw_all(registry)
    whole = ask(registry, name)
    tag = whole.headers["ETag"]
    assert ask(registry, name, **{"If-None-Match": tag}).status_code == 304
    head = registry.client.head(f"/v1/voices/{name}/versions/default/{WAVEFORM}")
    assert (head.headers["ETag"], head.headers["Content-Length"]) == (tag, str(len(whole.content)))
    part = ask(registry, name, Range="bytes=0-3")
    assert (part.status_code, part.content) == (206, b"<svg")
    assert whole.headers["X-Voice-Version"] == "1"


def test_a_picture_runs_nothing_in_a_browser(registry: Registry, name: str):
    """SVG can hold scripts, and whoever can write to the bucket could put one there."""
    registry.upload(name)
    ask(registry, name)
    draw_all(registry)
    for picture in (WAVEFORM, MEL):
        headers = ask(registry, name, picture).headers
        assert "default-src 'none'; sandbox" in headers.get_list("content-security-policy")
        assert headers["x-content-type-options"] == "nosniff"


def test_a_version_without_a_clip_has_no_pictures(registry: Registry, name: str):
    """Nothing can be drawn of an embedding, so no worker is asked."""
    registry.upload(name, clip=None, speaker_embedding=EMBEDDING)
    assert ask(registry, name).json()["error"]["code"] == "audio_not_found"
    assert not draw_all(registry)


def test_a_lost_or_damaged_picture_is_drawn_again(registry: Registry, name: str):
    """No document names a picture, so it is made again from the clip at any time."""
    registry.upload(name)
    ask(registry, name)
    draw_all(registry)
    whole = {picture: ask(registry, name, picture).content for picture in (WAVEFORM, MEL)}
    waveform = next(file for file in files(registry, name) if file.name.endswith(WAVEFORM))
    for harm in (waveform.unlink, lambda: waveform.write_bytes(b"<svg><script/></svg>")):
        harm()
        assert ask(registry, name).status_code == 202
        assert draw_all(registry)
        assert ask(registry, name).content == whole[WAVEFORM]
        assert ask(registry, name, MEL).content == whole[MEL]


def test_a_clip_that_cannot_be_drawn_is_given_up(registry: Registry, name: str):
    """Every page that shows the voice would otherwise make another job, for ever."""

    def refuse(_: ReferenceAudio) -> Drawn:
        raise InvalidAudio("too strange")

    registry.upload(name)
    ask(registry, name)
    assert draw_all(registry, refuse)
    answer = ask(registry, name)
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert answer.json()["error"]["code"] == "pictures_failed"
    assert f"version 1 of voice '{name}' could not be drawn" in answer.json()["error"]["message"]
    assert not draw_all(registry)
    with Visitor(registry) as visitor:
        assert "could not be drawn" in visitor.get(f"/voices/{name}/versions/1/pictures").text


def test_a_clip_that_was_lost_is_drawn_once_it_is_restored(registry: Registry, name: str):
    """The answer names the cause meanwhile, and no page makes job after job."""
    registry.upload(name)
    clip = lose_clip(registry, name)
    assert ask(registry, name).status_code == 202
    assert draw_all(registry)
    answer = ask(registry, name)
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "pictures_failed")
    assert "missing, and the uploaded one is missing" in answer.json()["error"]["message"]
    assert draw_all(registry)
    with Visitor(registry) as visitor:
        page = visitor.get(f"/voices/{name}/versions/1/pictures").text
    assert "missing, and the uploaded one is missing" in page
    assert "hx-get" not in page
    for file, data in clip.items():
        file.write_bytes(data)
    assert draw_all(registry), "the page has asked for another try"
    assert ask(registry, name).status_code == 200


def test_a_clip_that_was_lost_and_uploaded_again_is_not_called_lost(registry: Registry, name: str):
    """The first request after the upload was answered with what the drawing before it had found."""
    registry.upload(name)
    lose_clip(registry, name)
    assert ask(registry, name).status_code == 202
    assert draw_all(registry)
    registry.upload(name)
    assert ask(registry, name).status_code == 202
    assert draw_all(registry)
    assert ask(registry, name).status_code == 200


def test_the_pictures_are_erased_with_their_voice(registry: Registry, name: str):
    """A spectrogram can be turned into speech, so it is a person's data like the clip."""
    registry.upload(name)
    ask(registry, name)
    draw_all(registry)
    assert len(files(registry, name)) == 2
    erase_at_once(registry, name)
    assert len(files(registry, name)) == 2, "those of a live voice are kept"
    assert registry.client.delete(f"/v1/voices/{name}").status_code == 204
    assert ask(registry, name).status_code == 404
    erase_at_once(registry, name)
    assert files(registry, name) == []


def test_nothing_is_stored_for_a_voice_that_was_deleted_meanwhile(registry: Registry, name: str):
    """The erasure may have passed already, and would not come back for what lands later."""

    def delete_first(clip: ReferenceAudio) -> Drawn:
        assert registry.client.delete(f"/v1/voices/{name}").status_code == 204
        return draw(clip)

    registry.upload(name)
    ask(registry, name)
    assert draw_all(registry, delete_first)
    assert files(registry, name) == []


def test_an_export_takes_no_pictures_and_the_copy_draws_its_own(registry: Registry, name: str):
    """Pictures follow from the clip, and a registry of a later release draws them in its own way."""
    registry.upload(name, clip=clips.flac(1.7))
    ask(registry, name)
    draw_all(registry)
    with RegistryClient(registry.url) as client:
        picture = client.picture(name, "mel")
        assert picture.mime_type == "image/png"
        copy = client.register(f"{name}-copy", client.clip(name).data, consent="cons_1")
    assert ask(registry, copy.name).status_code == 202
    draw_all(registry)
    assert ask(registry, copy.name, MEL).content == picture.data


def test_the_page_of_a_voice_shows_its_pictures(registry: Registry, name: str):
    """Until they are drawn the page says so and asks again, and without scripts it links to them."""
    registry.upload(name)
    with Visitor(registry) as visitor:
        page = visitor.get(f"/voices/{name}").text
        [part] = re.findall(r'<div id="pictures-\w+" hx-get="/dashboard([^"]+)"', page)
        waiting = visitor.get(part)
        assert "A worker draws the pictures" in waiting.text
        assert f'hx-get="/dashboard{part}"' in waiting.text
        assert visitor.get(f"{part}/{MEL}").status_code == 404
        draw_all(registry)
        shown = visitor.get(part).text
        assert "hx-get" not in shown
        for picture in (WAVEFORM, MEL):
            assert f'<img src="/dashboard{part}/{picture}"' in shown
            assert visitor.get(f"{part}/{picture}").content == ask(registry, name, picture).content


@pytest.mark.parametrize("picture", ["wave.svg", "mel.png%00", "..%2Faudio"])
def test_another_picture_does_not_exist(registry: Registry, name: str, picture: str):
    """The name of a picture becomes part of no path."""
    registry.upload(name)
    with Visitor(registry) as visitor:
        assert visitor.get(f"/voices/{name}/versions/1/pictures/{picture}").status_code in {400, 404}


def test_redis_loses_its_jobs_and_the_picture_is_drawn_all_the_same(start: Start, name: str):
    """A job that is lost is made again by the next request, as the picture is still missing."""
    registry = start()
    registry.upload(name)
    assert ask(registry, name).status_code == 202
    registry.redis.flushdb()
    assert ask(registry, name).status_code in {202, 503}
    registry.rebuild()
    assert ask(registry, name).status_code == 202
    assert draw_all(registry)
    assert ask(registry, name).status_code == 200


def test_redis_loses_their_queue_alone_and_the_picture_is_drawn_all_the_same(start: Start, name: str):
    registry = start()
    registry.upload(name)
    assert ask(registry, name).status_code == 202
    registry.redis.delete(JobQueue(PICTURES_QUEUE, registry.redis).key)
    assert not draw_all(registry)
    assert ask(registry, name).status_code == 202
    assert draw_all(registry)
    assert ask(registry, name).status_code == 200
