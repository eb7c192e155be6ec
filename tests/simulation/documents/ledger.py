"""An exact account of what was committed and acknowledged. Every write and every answer is judged by it.

The numbers in messages are those of the promises that are broken:

1  an acknowledged version keeps its clip and artifacts until a delete that covers it, and that stays
2  numbers, `created_at` and `life` of a name rise, and a number stands for one version
3  a build of an artifact has one content
4  what a document names is in the bucket
5  the view of a generation never goes back, and equals the documents at rest
6  what an answer says was true between the request and the answer
7  `default` moves by itself only to a version that serves all that its old target served, and never if the
   promotion policy is `manual`
8  a change is made once or not at all
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from services.shared.bucket.layout import (
    VIEW,
    artifact_key,
    bytes_of,
    clip_key,
    document_key,
    rendition_key,
    speaker_of,
)
from services.shared.model.artifacts import CANCELED
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import Version, unseal
from services.shared.model.speaker import SpeakerId
from speaker_registry.names import DEFAULT
from tests.simulation.documents.request import PATIENCE_SECONDS, Request, current_request

READER_SECONDS = 5.0
"""A reader of a view that is not in use any more is behind by no more than this."""
NOTHING = SpeakerDocument()
_ONCE = {"register", "delete", "publish", "alias", "edit", "undelete", "delete version", "cancel", "erase"}
"""Changes of which one request makes one."""
_TAKES = {"delete", "erase", "delete version"}


class Violation(AssertionError):
    """A promise does not hold."""


class Ledger:
    """Knows every document that ever was, and what anybody was told."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.line: dict[SpeakerId, dict[int, SpeakerDocument]] = defaultdict(dict)
        """The documents of each speaker, by revision."""
        self.newest: dict[SpeakerId, SpeakerDocument] = defaultdict(lambda: NOTHING)
        self.uploads: dict[str, Request] = {}
        """The uploads by the ids of their versions, also of those that never came to be."""
        self.generation = ""
        """The generation that `_view.json` names."""
        self.view_changed_at = float("-inf")
        self.lost: set[str] = set()
        """Keys of artifacts whose bytes the weather took."""
        self.damaged: set[SpeakerId] = set()
        """Speakers whose document is damaged now."""
        self._damages: dict[SpeakerId, int] = defaultdict(int)
        self._senders: dict[bytes, Request] = {}
        self._told: dict[SpeakerId, list[tuple[float, int, int]]] = defaultdict(list)
        """The highest revision of each speaker that anybody had been told, and since when and which event."""
        self._numbers: dict[tuple[SpeakerId, int], str] = {}
        self._highest: dict[SpeakerId, tuple[int, int]] = defaultdict(lambda: (0, 0))
        self._contents: dict[tuple[str, str, str, int], str] = {}
        self._canceled: set[tuple[str, str, str, int]] = set()
        self._brought_back: dict[str, float] = {}
        """The ids of versions that an undelete restored last, and when."""
        self._tainted: set[tuple[str, str, int]] = set()
        """Copies in a view that come from an answer of a node that was behind."""

    # Writes

    def sent(self, key: str, data: bytes) -> None:
        """A request sends something to the store."""
        request = current_request()
        if request is None:
            return
        self._senders.setdefault(data, request)
        found = bytes_of(key)
        if found and request.kind == "register":
            self.uploads.setdefault(found.vuid, request)

    def happened(self, key: str) -> None:
        """The store has carried out a write."""
        objects = self._world.truth.objects
        if key == VIEW:
            self._see_generation(objects[key][0])
        elif speaker_id := speaker_of(key):
            self._commit(speaker_id, objects[key][0])
        elif (found := bytes_of(key)) and key not in objects and key in named(found.speaker_id, self):
            raise Violation(f"4: {key} was removed, and the document names it")

    def _see_generation(self, body: bytes) -> None:
        try:
            generation = str(unseal(body).get("generation", ""))
        except ValueError:
            generation = ""  # the weather has damaged it
        if generation != self.generation:
            self.generation, self.view_changed_at = generation, self._world.time

    def damage(self, speaker_id: SpeakerId) -> None:
        """The weather has damaged a document, so what it said is not owed to anybody any more."""
        self.damaged.add(speaker_id)
        self._damages[speaker_id] += 1
        for version in _every_version(self.newest[speaker_id]):
            self.uploads[version.vuid].is_dead = False

    def _commit(self, speaker_id: SpeakerId, body: bytes) -> None:
        new, old = SpeakerDocument.model_validate(unseal(body)), self.newest[speaker_id]
        request = self._senders.get(body)
        self._world.note(f"COMMIT {speaker_id} {new.revision} {new.did} by {new.by}")
        self._world.counts["commits"] += 1
        if new.revision <= old.revision or (
            new.revision > old.revision + 1 and speaker_id not in self.damaged
        ):
            raise Violation(f"8: revision {new.revision} of {speaker_id} comes after {old.revision}")
        self.line[speaker_id][new.revision] = self.newest[speaker_id] = new
        before = NOTHING if speaker_id in self.damaged else old
        self.damaged.discard(speaker_id)
        self._judge_bytes(speaker_id, new)
        if request is not None:
            self._judge_once(speaker_id, new, request)
            self._judge_delete(speaker_id, before, new, request)
        self._judge_marks(speaker_id, before, new)
        for version in new.versions:
            self._judge_version(speaker_id, version)
        self._judge_kept(speaker_id, before, new, request)
        self._judge_aliases(speaker_id, before, new)

    def _judge_bytes(self, speaker_id: SpeakerId, new: SpeakerDocument) -> None:
        for key in named(speaker_id, self):
            if key not in self._world.truth.objects and key not in self.lost:
                raise Violation(f"4: {new.did} of {speaker_id} names {key}, which is not there")

    def _judge_once(self, speaker_id: SpeakerId, new: SpeakerDocument, request: Request) -> None:
        done = (new.did, self._damages[speaker_id])  # a damaged document forgets what was done
        request.commits[done] += 1
        if request.commits[done] > 1 and new.did in _ONCE:
            raise Violation(f"8: one {request.kind} of {speaker_id} was made twice")

    def _judge_delete(
        self, speaker_id: SpeakerId, old: SpeakerDocument, new: SpeakerDocument, request: Request
    ) -> None:
        """See what a delete covers, and that it does not cover what came much later."""
        if new.did == "undelete":
            for version in new.versions:
                self.uploads[version.vuid].is_dead = False
                self._brought_back[version.vuid] = self._world.time
        if new.did not in _TAKES:
            return
        for vuid, upload in self.uploads.items():
            is_gone = old.version(vuid) is not None and new.version(vuid) is None
            was_before = new.did == "delete" and upload.was_over_before(request.began)
            if upload.name == speaker_id.slug and (is_gone or was_before):
                upload.is_dead = True
            late = upload.began > request.started + 2 * PATIENCE_SECONDS and not request.stood_still
            if is_gone and late and new.did != "erase":
                raise Violation(f"1: a {new.did} of {speaker_id} from before took a later version")

    def _judge_marks(self, speaker_id: SpeakerId, old: SpeakerDocument, new: SpeakerDocument) -> None:
        if new.marks.life < old.marks.life or new.marks.number < old.marks.number:
            raise Violation(f"2: the marks of {speaker_id} fell")
        before = {version.vuid for version in _every_version(old)}
        for version in new.versions:
            if version.vuid in before:
                continue
            number, created_at = self._highest[speaker_id]
            if version.number <= number or version.created_at <= created_at:
                raise Violation(f"2: version {version.number} of {speaker_id} comes after {number}")
            self._highest[speaker_id] = (version.number, version.created_at)

    def _judge_version(self, speaker_id: SpeakerId, version: Version) -> None:
        if self.uploads[version.vuid].is_dead:
            raise Violation(f"1: version {version.number} of {speaker_id} is back after its delete")
        if self._numbers.setdefault((speaker_id, version.number), version.vuid) != version.vuid:
            raise Violation(f"2: number {version.number} of {speaker_id} stands for two versions")
        for profile, made in version.artifacts.items():
            for one in made:
                build = (version.vuid, profile, one.fingerprint, one.build)
                if self._contents.setdefault(build, one.digest) != one.digest:
                    raise Violation(f"3: build {one.build} of {speaker_id} for {profile} has two contents")
                if build in self._canceled:
                    raise Violation(f"1: build {one.build} of {speaker_id} came after it was canceled")
        for profile, failures in version.failures.items():
            for failure in failures:
                if failure.code == CANCELED:
                    self._canceled.add((version.vuid, profile, failure.fingerprint, failure.build))

    def _judge_kept(
        self, speaker_id: SpeakerId, old: SpeakerDocument, new: SpeakerDocument, request: Request | None
    ) -> None:
        """See that nothing went which the change does not take."""
        for version in old.versions if new.did not in _TAKES else ():
            kept = new.version(version.vuid)
            if kept is None:
                raise Violation(f"1: {new.did} of {speaker_id} lost version {version.number}")
            for profile, made in version.artifacts.items():
                for one in made:
                    key = artifact_key(speaker_id, version.vuid, one.object)
                    is_old = (
                        new.did == "promote"
                        and one.fingerprint not in self._world.kept_fingerprints()[profile]
                    )
                    if one in kept.artifacts.get(profile, ()) or key in self.lost or is_old:
                        continue
                    if request is None or not request.was_lied_to:
                        raise Violation(f"1: {new.did} of {speaker_id} lost a good artifact for {profile}")
                    self._world.counts["good artifacts replaced after several lies"] += 1
        keys = [version.idempotency for version in new.versions if version.idempotency]
        if len(keys) > len(set(keys)):
            raise Violation(f"8: one Idempotency-Key made two versions of {speaker_id}")

    @staticmethod
    def _judge_aliases(speaker_id: SpeakerId, old: SpeakerDocument, new: SpeakerDocument) -> None:
        if any(new.version(alias.vuid) is None for alias in new.aliases.values()):
            raise Violation(f"7: {new.did} of {speaker_id} leaves an alias without its version")
        before, after = old.aliases.get(DEFAULT), new.aliases.get(DEFAULT)
        if new.did == "alias" or before is None or after is None or before.vuid == after.vuid:
            return
        if new.about.promotion == "manual":
            raise Violation(f"7: `default` of {speaker_id} moved by itself under `manual`")
        source, target = old.version(before.vuid), new.version(after.vuid)
        if source and target and not target.served >= source.served:
            raise Violation(f"7: `default` of {speaker_id} moved to a version that serves less")

    # The view

    def applied(self, generation: str, speaker: str, before: int, after: int, *, by: Request | None) -> None:
        """A copy in a view was replaced."""
        if after <= before:
            raise Violation(f"5: the view of {speaker} went from revision {before} back to {after}")
        if by is not None and (by.was_lied_to or by.process.look_was_wrong):
            self._tainted.add((generation, speaker, after))

    # Answers

    def told(
        self, request: Request, speaker_id: SpeakerId, document: SpeakerDocument, *, is_commit: bool = False
    ) -> None:
        """A request is answered with what a document says."""
        known = self.line[speaker_id].get(document.revision, NOTHING)
        if document != known:
            raise Violation(f"6: {request.kind} answers from a document of {speaker_id} that never was")
        floor, is_exempt = self._floor(request, speaker_id), self._is_exempt(request)
        is_exempt |= any(one[1:] == (str(speaker_id), document.revision) for one in self._tainted)
        if document.revision < floor:
            if not is_exempt:
                raise Violation(
                    f"6: {request.kind} of {speaker_id} answers from revision {document.revision}, "
                    f"after {floor} had been told"
                )
            self._world.counts["answers that were behind, and may be"] += 1
        elif not is_exempt and (is_commit or not (self._has_two_views(request) or request.met_no_view)):
            self._tell(speaker_id, document.revision)

    def told_none(self, request: Request, speaker_id: SpeakerId) -> None:
        """A request is answered that there is no such voice. That has to be true of some moment."""
        floor = self._floor(request, speaker_id)
        later = (one for revision, one in self.line[speaker_id].items() if revision >= floor)
        lied_at = request.process.lied_at.get(document_key(speaker_id), float("-inf"))
        is_exempt = self._is_exempt(request) or any(one[1] == str(speaker_id) for one in self._tainted)
        is_exempt |= self._world.time - lied_at <= READER_SECONDS  # the process remembers what it heard
        if floor and all(one.live for one in later) and not is_exempt:
            raise Violation(f"6: {request.kind} of {speaker_id} answers that there is none")

    def deleted_nothing(self, request: Request, speaker_id: SpeakerId) -> None:
        """A delete is answered that there is nothing to delete, so what began before must not come."""
        self.told_none(request, speaker_id)
        if self._is_exempt(request):
            return
        for vuid, upload in self.uploads.items():
            is_back = self._brought_back.get(vuid, float("-inf")) >= request.began
            if upload.name == speaker_id.slug and upload.was_over_before(request.began) and not is_back:
                upload.is_dead = True

    def _tell(self, speaker_id: SpeakerId, revision: int) -> None:
        told = self._told[speaker_id]
        if not told or revision > told[-1][-1]:
            told.append((self._world.time, len(self._world.events), revision))

    def _floor(self, request: Request, speaker_id: SpeakerId) -> int:
        """Return the revision that had been told when the request began."""
        moment = (request.began, request.order)
        if self._has_two_views(request):
            moment = (request.began - READER_SECONDS, 0)
        return max((rev for *since, rev in self._told[speaker_id] if tuple(since) <= moment), default=0)

    def _has_two_views(self, request: Request) -> bool:
        is_another = request.read_from not in {"", self.generation}
        return is_another and self.view_changed_at > request.began - READER_SECONDS

    def _is_exempt(self, request: Request) -> bool:
        """Return whether a request may have heard what was not true any more."""
        return (
            request.was_lied_to
            or request.stood_still
            or request.process.look_was_wrong
            or self._world.trouble_until > request.began
        )


def named(speaker_id: SpeakerId, ledger: Ledger) -> dict[str, str]:
    """Return the keys of all bytes that the newest document of a speaker names, with their digests."""
    if speaker_id in ledger.damaged:
        return {}
    return dict(_named(speaker_id, ledger.newest[speaker_id]))


def _named(speaker_id: SpeakerId, document: SpeakerDocument) -> Iterator[tuple[str, str]]:
    for version in _every_version(document):
        if version.clip is not None:
            yield clip_key(speaker_id, version.vuid), f"sha256:{version.clip.sha256}"
            yield rendition_key(speaker_id, version.vuid), f"sha256:{version.clip.rendition_sha256}"
        for made in version.artifacts.values():
            for one in made:
                yield artifact_key(speaker_id, version.vuid, one.object), one.digest


def _every_version(document: SpeakerDocument) -> Iterator[Version]:
    yield from document.versions
    for life in document.dead:
        yield from life.versions
