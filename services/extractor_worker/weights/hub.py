"""Fetches a file of a repository at a commit from the Hugging Face hub, or finds it in the cache.

The library's own settings apply (HF_TOKEN, HF_HOME, HF_HUB_OFFLINE …). Its telemetry is off unless
HF_HUB_DISABLE_TELEMETRY=0. The library resumes interrupted downloads, keeps complete files for the next run,
and shows a progress bar on a terminal. This module knows no model.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from speaker_registry.errors import WeightsInvalid, WeightsMissing

_TransportError: type[Exception] = HfHubHTTPError.__bases__[0]
"""The exception of the library's HTTP package for a broken connection. The package differs between releases.
"""


class HubUnreachable(WeightsMissing):
    """A file is not in the cache, and the hub cannot be reached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file of a repository at a commit."""

    repo: str
    commit: str
    """The commit, in 40 hex digits."""
    name: str
    """The path within the repository."""
    folder: Path | None = None
    """The folder that gets the file under its name. By default it goes into the library's cache."""

    def planned(self) -> tuple[int | None, bool]:
        """Return the size in bytes if it is known, and whether the file has to be fetched.

        The hub is asked only about files that are not there.

        Raises:
            HubUnreachable.
            WeightsMissing: the hub has no such repository, commit or file, or does not show it to this user.
            WeightsInvalid: the file is of another commit.
        """
        found = self._download(dry_run=True)
        if isinstance(found, str):
            raise HubUnreachable(f"{self._unavailable}: the folder has a {self.name} of unknown origin")
        if found.commit_hash != self.commit:
            raise WeightsInvalid(
                f"asked for {self.repo} at commit {self.commit}, the hub delivered {found.commit_hash:.40}"
            )
        return found.file_size, found.will_download

    def fetched(self, *, announce: Callable[[int | None], object] | None = None) -> Path:
        """Fetch the file unless it is there already, and return its path.

        Args:
            announce: called with the size, if it is known, before the file is fetched.

        Raises:
            What `planned` raises.
            OSError: the file cannot be stored, for example because the disk is full.
        """
        size, to_fetch = self.planned()
        if to_fetch and announce is not None:
            announce(size)
        return Path(str(self._download(dry_run=False)))

    def _download(self, *, dry_run: bool):  # type: ignore[no-untyped-def]  # the library's
        if "HF_HUB_DISABLE_TELEMETRY" not in os.environ:
            constants.HF_HUB_DISABLE_TELEMETRY = True  # the library has read the environment already
        with self._translated_errors():
            return hf_hub_download(
                self.repo, self.name, revision=self.commit, local_dir=self.folder, dry_run=dry_run
            )

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise our own errors instead of those of the library."""
        try:
            yield
        except RemoteEntryNotFoundError as error:
            raise WeightsMissing(f"{self.repo} at commit {self.commit} has no {self.name}") from error
        except RevisionNotFoundError as error:
            raise WeightsMissing(f"{self.repo} has no commit {self.commit}") from error
        except GatedRepoError as error:
            raise WeightsMissing(f"{self.repo} is gated: accept its terms there, and set HF_TOKEN") from error
        except RepositoryNotFoundError as error:
            raise WeightsMissing(f"the hub has no {self.repo}, or none that HF_TOKEN may see") from error
        except HfHubHTTPError as error:
            raise HubUnreachable(f"{self._unavailable} (HTTP {error.response.status_code})") from error
        except (LocalEntryNotFoundError, OfflineModeIsEnabled, _TransportError) as error:
            raise HubUnreachable(f"{self._unavailable} ({_cause(error)}): {self.name} missing") from error

    @property
    def _unavailable(self) -> str:
        return f"{self.repo} at commit {self.commit} is not cached, and the hub cannot deliver it"


def _cause(error: BaseException) -> str:
    """Return the cause in two or three words. The library's exception has the details."""
    reason = error.__cause__ or error
    return "HF_HUB_OFFLINE is set" if isinstance(reason, OfflineModeIsEnabled) else type(reason).__name__
