"""The decoder of uploads. A guarded process parses and decodes the file, and this process judges the result.

This process reads no byte of the file and never imports the decoding libraries.
"""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from services.shared.audio.judge import check_complete, error_of, judge, unsupported
from services.shared.audio.processes import (
    PROGRAM,
    Crashed,
    GuardedProcess,
    NoProcess,
    Unfiltered,
    Zygote,
    deadline_in,
)
from services.shared.audio.sandbox.refusal import Refused
from services.shared.audio.sandbox.wire import Accepted, Measurements, Request, Status
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import InvalidAudio, PayloadTooLarge, Unavailable
from speaker_registry.reference_audio import ReferenceAudio

WAIT_SECONDS = 10.0
"""Time for which an upload waits for a free decoder before it is refused with `Retry-After`."""
_RETRY_AFTER_SECONDS = 1.0
_RETRY_AFTER_MISCONFIGURED_SECONDS = 60.0
_UNKNOWN_LABEL = "audio"
"""Used in messages instead of a container's name if a file crashes the guarded process before the container
is known.
"""
_ZYGOTE_EXIT_SECONDS = 0.5
"""Time after which a killed zygote can be told from a clip that crashed its process, and from a zygote that
could not fork. It is long enough for a busy machine.
"""


@dataclass(frozen=True, slots=True)
class DecodedClip:
    """A decoded clip and the properties of the file it came from."""

    audio: ReferenceAudio
    container: str
    """One of wav, flac, mp3, ogg, aac, m4a, mp4 and webm."""
    codec: str
    """Name of the codec in libav, such as pcm_s16le or opus."""
    mime_type: str
    """MIME type of the content, whatever type the upload declared."""
    channels: int
    """Number of channels before they were mixed down."""


class AudioDecoder:
    """Decodes uploaded bytes to reference audio. It can be called from many threads. Close it when done.

    Every clip is decoded in a separate process, so that a clip that breaks the decoding library affects no
    other clip.
    """

    def __init__(self, limits: UploadLimits, *, spare_processes: int = 1, program: str = PROGRAM) -> None:
        """Args:
        spare_processes: Number of processes that are kept ready. A clip that finds one is decoded in half
            the time. Each takes 3 MiB.
        program: Python code that the decoding process runs. Only tests replace it.
        """
        self._limits = limits
        self._spare_processes = spare_processes
        self._program = program
        self._slots = threading.BoundedSemaphore(limits.decoders)
        self._lock = threading.Lock()
        self._zygote: Zygote | None = None
        self._closed = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Load the decoding libraries, so that the first decode is not slower than others. Raises Unavailable
        if they cannot be loaded.
        """
        self._running_zygote()

    def close(self) -> None:
        """End the processes. A running decode in another thread raises Unavailable."""
        with self._lock:
            self._closed = True
            zygote, self._zygote = self._zygote, None
        if zygote:
            zygote.close()

    def decode(self, data: bytes) -> DecodedClip:
        """Decode an uploaded file.

        Raises:
            InvalidAudio: The clip is not accepted. The subclasses UnsupportedAudio, AudioTooShort,
                AudioTooLong and AudioTruncated say more.
            PayloadTooLarge: The file has more than `max_bytes`.
            Unavailable: No decoding process became free in time.
        """
        self._check_size(data)
        with self._slot():
            try:
                accepted, measured, samples = self._read(Request(self._limits.max_seconds, data))
            except Refused as refused:
                raise error_of(refused) from None
        declared = accepted.declared_seconds
        declared = measured.declared_seconds if math.isnan(declared) else declared
        self._check_status(measured, accepted, declared)
        judge(measured, declared, self._limits)
        if not measured.finished:  # a clip that passed all rules must have been read to its end
            raise self._undecodable(accepted.label)
        return DecodedClip(
            audio=ReferenceAudio(samples, measured.sample_rate),
            container=accepted.container,
            codec=accepted.codec or measured.codec,
            mime_type=accepted.mime_type,
            channels=measured.channels,
        )

    def _check_size(self, data: bytes) -> None:
        limit = self._limits.max_bytes
        if len(data) > limit:
            raise PayloadTooLarge(
                f"File size exceeds maximum limit of {limit / 1024**2:g}MB. Got {len(data)} bytes."
            )

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if not self._slots.acquire(timeout=WAIT_SECONDS):
            raise Unavailable(
                f"All {self._limits.decoders} decoders are busy. Try again in a moment.",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        try:
            yield
        finally:
            self._slots.release()

    def _read(self, request: Request) -> tuple[Accepted, Measurements, NDArray[np.float32]]:
        label = _UNKNOWN_LABEL
        for _ in range(2):  # a second attempt if the zygote was killed, which is not the clip's fault
            zygote = self._running_zygote()
            try:
                deadline = deadline_in(self._limits.decode_seconds)
                with self._one_child(zygote, deadline) as child:
                    accepted = child.ask(request, deadline)
                    label = accepted.label
                    return accepted, *child.decoded(request.max_seconds, deadline)
            except TimeoutError:
                raise InvalidAudio(
                    f"The {label} could not be decoded within {self._limits.decode_seconds:g}s."
                ) from None
            except Crashed:
                if not zygote.ends_within(_ZYGOTE_EXIT_SECONDS):
                    raise self._undecodable(label) from None
            except Unfiltered:
                raise _no_filter() from None
            except NoProcess:
                zygote.ends_within(_ZYGOTE_EXIT_SECONDS)
        raise _no_decoder()

    @contextmanager
    def _one_child(self, zygote: Zygote, deadline: float) -> Iterator[GuardedProcess]:
        """Provide a guarded process for one clip. When it has answered, another is prepared for the next
        clip.
        """
        with zygote.fork(deadline) as child:
            try:
                yield child
            except Refused:
                zygote.prepare(self._spare_processes)
                raise
        zygote.prepare(self._spare_processes)

    def _running_zygote(self) -> Zygote:
        with self._lock:
            if self._closed:
                raise _no_decoder()
            if self._zygote and not self._zygote.is_alive():
                self._zygote.close()
                self._zygote = None
            if not self._zygote:
                self._zygote = self._started()
            return self._zygote

    def _started(self) -> Zygote:
        try:
            zygote = Zygote(
                memory_bytes=self._limits.decode_memory_bytes,
                cpu_seconds=self._limits.decode_seconds,
                filter_required=self._limits.require_seccomp,
                program=self._program,
            )
        except Unfiltered:
            raise _no_filter() from None
        except NoProcess:
            raise _no_decoder() from None
        zygote.prepare(self._spare_processes)
        return zygote

    def _check_status(self, measured: Measurements, accepted: Accepted, declared_seconds: float) -> None:
        match measured.status:
            case Status.FAILED:
                check_complete(measured.frames / max(1, measured.sample_rate), declared_seconds)
                raise self._undecodable(accepted.label)
            case Status.WRONG_CODEC:
                codec = f"the codec {measured.codec}" if measured.codec else "an unknown codec"
                raise unsupported(f"{accepted.label} with {codec}")
            case Status.NO_AUDIO_STREAM:
                raise unsupported(f"{accepted.label} without audio")
            case Status.SEVERAL_AUDIO_STREAMS:
                raise unsupported(f"{accepted.label} with several audio streams")
            case Status.VIDEO_STREAM:
                raise unsupported(f"{accepted.label} with video")

    def _undecodable(self, label: str) -> InvalidAudio:
        memory = self._limits.decode_memory_bytes // 1024**2
        return InvalidAudio(
            f"The {label} could not be decoded: it is damaged, or takes more than {memory} MiB."
        )


def _no_decoder() -> Unavailable:
    return Unavailable(
        "No audio decoder is available. Try again in a moment.", retry_after_seconds=_RETRY_AFTER_SECONDS
    )


def _no_filter() -> Unavailable:
    return Unavailable(
        "No clip is decoded: SPEAKER_UPLOAD_REQUIRE_SECCOMP is set, and the processor, kernel or container "
        "rules out the seccomp filter.",
        retry_after_seconds=_RETRY_AFTER_MISCONFIGURED_SECONDS,
    )
