"""The Hugging Face hub: one file of one repository at one commit, fetched or found again. Knows no model.

The library's own settings apply (HF_TOKEN, HF_HOME, HF_HUB_OFFLINE …), but that it asks and tells the hub
nothing beside the files unless HF_HUB_DISABLE_TELEMETRY=0. It takes a cut connection up again where it broke,
keeps whole files for the next run, and shows a bar on a terminal.
"""

import os
from collections.abc import Iterator
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
"""What the library lets through when a connection breaks. Of its HTTP package, and that changes."""


class HubUnreachable(WeightsMissing):
    """Not in the cache, and the hub cannot be asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    repo: str
    commit: str
    """40 hex digits."""
    name: str
    """Within the repository."""
    cache: Path | None = None
    """Instead of the library's default."""
    folder: Path | None = None
    """Where the file goes under its name, instead of into a cache."""

    def planned(self, *, local_files_only: bool = False) -> tuple[int | None, bool]:
        """Size in bytes if it is known, and whether the file has to be fetched. Asks the hub about what is
        not there.

        Raises:
            HubUnreachable. WeightsMissing: the hub has no such repository, commit or file for us.
            WeightsInvalid: the file is of another commit.
        """
        found = self._download(dry_run=True, local_files_only=local_files_only)
        if isinstance(found, str):
            raise HubUnreachable(
                f"{self._what}: a {self.name} is there, of which nobody knows where it is from"
            )
        if found.commit_hash != self.commit:
            raise WeightsInvalid(
                f"asked for {self.repo} at commit {self.commit}, the hub delivered {found.commit_hash:.40}"
            )
        return found.file_size, found.will_download

    def fetched(self, *, local_files_only: bool = False) -> Path:
        """The file on this machine. Raises what `planned` does, and OSError, e.g. when the disk is full."""
        self.planned(local_files_only=local_files_only)
        return Path(str(self._download(dry_run=False, local_files_only=local_files_only)))

    def _download(self, *, dry_run: bool, local_files_only: bool):  # type: ignore[no-untyped-def]  # the library's
        if "HF_HUB_DISABLE_TELEMETRY" not in os.environ:
            constants.HF_HUB_DISABLE_TELEMETRY = True  # its own reading of the environment is over by now
        with self._explained():
            return hf_hub_download(
                self.repo,
                self.name,
                revision=self.commit,
                cache_dir=self.cache,
                local_dir=self.folder,
                local_files_only=local_files_only,
                dry_run=dry_run,
            )

    @contextmanager
    def _explained(self) -> Iterator[None]:
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
            raise HubUnreachable(f"{self._what} (HTTP {error.response.status_code})") from error
        except (LocalEntryNotFoundError, OfflineModeIsEnabled, _TransportError) as error:
            raise HubUnreachable(f"{self._what} ({_cause(error)}): {self.name} missing") from error

    @property
    def _what(self) -> str:
        return f"{self.repo} at commit {self.commit} is neither cached nor to be had from the hub"


def _cause(error: BaseException) -> str:
    """In two or three words: the library tells the whole story in the exception itself."""
    reason = error.__cause__ or error
    if isinstance(reason, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    return "not asked" if isinstance(reason, LocalEntryNotFoundError) else type(reason).__name__
