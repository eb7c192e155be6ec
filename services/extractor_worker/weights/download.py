"""The command `python -m services.extractor_worker download`, which fetches the published files of profiles
before a worker needs them. It knows no model and imports no torch.

Exit codes: 0: all files are there; 1: a file is refused, or cannot be fetched or stored; 2: wrong usage; 3:
the hub cannot be reached; 130: interrupted.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.extractor_worker.weights.hub import HubFile, HubUnreachable
from services.extractor_worker.weights.loading import (
    HubWeights,
    LocalWeights,
    check_digest,
    commit_of,
    known_digests,
)
from services.shared.model.profiles import ProfileAmbiguous, ProfileCatalogue
from speaker_registry.engine import Profile
from speaker_registry.errors import ProfileUnknown, SpeakerRegistryError, WeightsInvalid
from speaker_registry.terminal import field_lines, printable, table

OK, REFUSED, USAGE, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 130


class UsageError(Exception):
    """The arguments of `download` contradict each other or the catalogue."""


@dataclass(frozen=True, slots=True)
class ProfileFiles:
    """The files of one profile, and their destination."""

    profile: Profile
    commit: str
    to: Path | None
    """A folder, as WEIGHTS accepts it, that gets a sub-folder for each profile. None means the hub's cache.
    """

    @property
    def files(self) -> list[HubFile]:
        repo = self.profile.weights.repo
        return [
            HubFile(repo=repo, commit=self.commit, name=name, folder=self.folder)
            for name in self.profile.weights.files
        ]

    @property
    def folder(self) -> Path | None:
        return self.to / self.profile.name if self.to else None

    @property
    def digests(self) -> dict[str, str]:
        """Return the digests that a worker expects of the files when it reads them from the destination."""
        source = LocalWeights(self.to) if self.to else HubWeights(self.commit)
        return known_digests(source, self.profile.weights)


def main(words: Sequence[str], program: str) -> int:
    """Run the command and return the exit code. `program` is the command's name for messages."""
    try:
        catalogue = ProfileCatalogue.load(())
    except ProfileAmbiguous as error:
        print(f"{program}: {error}", file=sys.stderr)
        return REFUSED
    parser = _parser(program, catalogue)
    arguments = parser.parse_args(words)
    try:
        all_requested = list(_requested_files(arguments, catalogue))
    except (UsageError, ProfileUnknown, WeightsInvalid) as error:
        parser.error(str(error))
    try:
        for requested in all_requested:
            _fetch(requested)
    except KeyboardInterrupt:
        print("\ninterrupted; complete files are kept", file=sys.stderr)
        return INTERRUPTED
    except (SpeakerRegistryError, OSError) as error:
        print(f"{program}: {printable(_message(error))}", file=sys.stderr)
        return UNREACHABLE if isinstance(error, HubUnreachable) else REFUSED
    print(f"Use with {_setting(arguments.to, arguments.commit)}")
    return OK


def _requested_files(arguments: argparse.Namespace, catalogue: ProfileCatalogue) -> Iterator[ProfileFiles]:
    """Yield the files of each requested profile. Raises all errors of usage before anything is fetched."""
    names = list(dict.fromkeys(name.strip() for name in arguments.profiles.split(",") if name.strip()))
    if not names:
        raise UsageError("--profiles names no profile")
    if arguments.commit and len(names) > 1:
        raise UsageError("--commit belongs to one repository: name one profile")
    for name in names:
        profile = catalogue.get(name)
        if profile.not_extractable:
            raise UsageError(f"{name} has nothing to fetch: {profile.not_extractable}")
        yield ProfileFiles(profile, _commit(profile, arguments.commit), arguments.to)


def _commit(profile: Profile, given: str | None) -> str:
    weights = profile.weights
    if given is None and weights.commit is None and weights.files:
        raise UsageError(
            f"no commit of {weights.repo} is pinned: name one with --commit, the 40 hex digits the hub shows"
        )
    return commit_of(HubWeights(given), weights) if weights.files else ""


def _fetch(requested: ProfileFiles) -> None:
    profile, files = requested.profile, requested.files
    _print_licence(requested)
    if not files:
        print(f"{profile.name} needs no files\n")
        return
    plans = [file.planned() for file in files]
    missing = [size for size, to_fetch in plans if to_fetch]
    print(f"{len(missing)} of {len(files)} files to fetch, {_megabytes(sum(size or 0 for size in missing))}")
    rows = []
    for file, (size, to_fetch) in zip(files, plans, strict=True):
        if to_fetch and not sys.stderr.isatty():  # on a terminal, the hub's library shows a progress bar
            print(f"fetching {file.name}, {_megabytes(size or 0)}", flush=True)
        path = file.fetched()
        checked = _checked(requested, file, path, fetched=to_fetch)
        rows.append((file.name, _megabytes(path.stat().st_size), checked))
    print(table(("FILE", "SIZE", "SHA256"), rows))
    print(f"in {requested.folder or path.parents[len(Path(file.name).parts) - 1]}\n")


def _checked(requested: ProfileFiles, file: HubFile, path: Path, *, fetched: bool) -> str:
    """Compare the file with the known digest, and return the result for the table.

    A wrong file that was fetched just now is removed, so that the next run does not find it.
    """
    sha256 = requested.digests.get(file.name)
    if sha256 is None:
        return "not known here"
    try:
        check_digest(path, file.name, sha256, profile=requested.profile.name, repo=file.repo)
    except WeightsInvalid as error:
        if not fetched:
            raise WeightsInvalid(f"{error.message}. Remove {path} to have it fetched again") from error
        path.resolve().unlink()
        path.unlink(missing_ok=True)  # a link, in the hub's cache
        raise WeightsInvalid(f"{error.message}. The file was removed") from error
    return "as published"


def _print_licence(requested: ProfileFiles) -> None:
    """Print which files are fetched, and their licence."""
    weights = requested.profile.weights
    print(
        field_lines(
            [
                ("profile", requested.profile.name),
                ("repository", weights.repo),
                ("commit", requested.commit or None),
                ("licence", weights.licence),
                ("notes", weights.notes),
            ]
        ),
        flush=True,
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


def _setting(to: Path | None, commit: str | None) -> str:
    return f"WEIGHTS={to}" if to else f"WEIGHTS=hub:{commit}" if commit else "WEIGHTS=hub"


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _parser(program: str, catalogue: ProfileCatalogue) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        description="Fetch the published weights of profiles from the Hugging Face hub, exactly the files "
        "that a worker reads, at the commit that is pinned here. What is there already is not fetched again.",
        epilog="The hub library's environment variables apply, e.g. HF_TOKEN, HF_HOME, HF_ENDPOINT.",
    )
    parser.add_argument(
        "--profiles",
        metavar="A,B",
        required=True,
        help="the profiles whose weights are fetched: " + _known(catalogue),
    )
    parser.add_argument(
        "--to",
        metavar="FOLDER",
        type=lambda text: Path(text).expanduser(),
        help="store the files in FOLDER/<profile>/, for WEIGHTS=FOLDER (default: in the hub's cache, for "
        "WEIGHTS=hub)",
    )
    parser.add_argument(
        "--commit", metavar="HEX", help="fetch this commit, not the pinned one; only for a single profile"
    )
    return parser


def _known(catalogue: Iterable[Profile]) -> str:
    """Return the names of the profiles that have files to fetch."""
    return ", ".join(one.name for one in catalogue if not one.not_extractable)
