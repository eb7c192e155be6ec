"""The download command fetches weights, here from a hub on loopback."""

import hashlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from services.extractor_worker.weights.download import REFUSED, ProfileFiles, _parser, _requested_files
from services.extractor_worker.weights.loading import (
    HubWeights,
    LocalWeights,
    commit_of,
    download_command,
    locate,
)
from services.shared.model.profiles import BUILT_IN, ProfileCatalogue
from speaker_registry.engine import PublishedWeights
from speaker_registry.errors import WeightsMissing
from tests.unit.extractors.fake_hub import COMMIT, REPO, FakeHub, running

ROOT = Path(__file__).parents[3]
FILES = {"config.json": b'{"a": 1}', "codec/model.safetensors": bytes(range(256)) * 2000}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in FILES.items()}
PROFILES = f"""
from dataclasses import replace
from services.shared.model.profiles import BUILT_IN, ProfileCatalogue
from speaker_registry.engine import PublishedWeights

def made(name, **weights):
    fields = {{"repo": {REPO!r}, "commit": {COMMIT!r}, "licence": "CC-BY-NC-4.0", "files": {SUMS!r}}}
    fields.update(weights)
    return replace(BUILT_IN["qwen3-tts-0.6b"], name=name, weights=PublishedWeights(**fields))

pinned = made("pinned", notes="Ask first.")
unpinned = made("unpinned", commit=None)
elsewhere = made("elsewhere", commit="{"e" * 40}")
unsummed = made("unsummed", files=dict.fromkeys({SUMS!r}))
larger = made("larger", files={{**{SUMS!r}, "more.bin": None}})
bare = made("bare", files={{}})
"""
NAMES = ("pinned", "unpinned", "elsewhere", "unsummed", "larger", "bare")
Download = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with running(FakeHub(FILES)) as one:
        yield one


@pytest.fixture
def download(hub: FakeHub, tmp_path: Path) -> Download:
    """Return a function that runs the command where an installed package brings the profiles above."""
    package = tmp_path / "package"
    (package / "brought-1.dist-info").mkdir(parents=True)
    (package / "brought.py").write_text(PROFILES)
    (package / "brought-1.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: brought\nVersion: 1\n"
    )
    entries = "\n".join(f"{name} = brought:{name}" for name in NAMES)
    (package / "brought-1.dist-info/entry_points.txt").write_text(f"[speaker_registry.profiles]\n{entries}\n")

    def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        own = {
            "PYTHONPATH": str(package),
            "HF_ENDPOINT": hub.url,
            "HF_HUB_CACHE": str(tmp_path / "cache"),
            "HOME": str(tmp_path),
        }
        return subprocess.run(
            [sys.executable, "-m", "services.extractor_worker", "download", *words],
            cwd=ROOT,
            env={**kept, **own, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def weights(**fields: object) -> PublishedWeights:
    return PublishedWeights.model_validate(
        {"repo": REPO, "commit": COMMIT, "licence": "none", "files": SUMS, **fields}
    )


@pytest.mark.usefixtures("hub_cache")
def test_into_the_hubs_cache_where_weights_hub_finds_them(download: Download, hub: FakeHub):
    """The command prints the licence terms before it fetches files. Afterwards no network is needed."""
    done = download("--profiles", "pinned")
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout
    assert all(text in said for text in (REPO, COMMIT, "CC-BY-NC-4.0", "Ask first.", "2 of 2 files to fetch"))
    assert said.index("Ask first.") < said.index("to fetch") < said.index("codec/model.safetensors")
    assert "0.5 MB" in said
    assert said.count("as published") == 2
    assert said.endswith("Use with WEIGHTS=hub\n")
    checkpoint = locate(HubWeights(), profile="pinned", weights=weights())
    assert (checkpoint.folder / "codec/model.safetensors").read_bytes() == FILES["codec/model.safetensors"]
    assert (checkpoint.repo, checkpoint.revision) == (REPO, COMMIT)
    assert {name for _, name, _ in hub.asked} == set(FILES), "nothing else was asked for"


def test_into_a_folder_as_weights_takes_it(download: Download, hub: FakeHub, tmp_path: Path):
    """Each profile has a sub-folder. A second run fetches nothing."""
    models = tmp_path / "models"
    done = download("--profiles", "pinned, unsummed,pinned", "--to", str(models))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Use with WEIGHTS={models}\n")
    assert "fetching codec/model.safetensors, 0.5 MB" in done.stdout, "without a terminal, lines say it"
    for profile, said in (("pinned", "as published"), ("unsummed", "not known here")):
        folder = locate(LocalWeights(models), profile=profile, weights=weights()).folder
        assert folder == models / profile
        assert {name: (folder / name).read_bytes() for name in FILES} == FILES
        assert said in done.stdout
    hub.asked.clear()
    assert "0 of 2 files to fetch" in download("--profiles", "pinned", "--to", str(models)).stdout
    assert hub.fetched == []


def test_a_cut_connection_is_taken_up_where_it_broke(download: Download, hub: FakeHub, tmp_path: Path):
    """Gigabytes are not fetched twice. The library resumes in steps of ten megabytes."""
    name = "codec/model.safetensors"
    hub.files[name], hub.cut = bytes(range(250)) * 100_000, {name}
    done = download("--profiles", "unsummed", "--to", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert ("GET", name, f"bytes={10 * 1024**2}-") in hub.asked
    assert (tmp_path / "unsummed" / name).read_bytes() == hub.files[name]


def test_after_a_failure_whole_files_are_not_fetched_again(download: Download, hub: FakeHub, tmp_path: Path):
    """The next run fetches only the missing files."""
    hub.files["more.bin"] = b"more"
    models = tmp_path / "models"
    assert download("--profiles", "larger", "--to", str(models)).returncode == 0
    (models / "larger/config.json").unlink()
    hub.asked.clear()
    assert "1 of 3 files to fetch" in download("--profiles", "larger", "--to", str(models)).stdout
    assert hub.fetched == ["config.json"]


@pytest.mark.parametrize("to", [True, False])
def test_a_file_with_another_content_is_refused_and_does_not_stay(
    download: Download, hub: FakeHub, tmp_path: Path, to: bool
):
    """Otherwise the next run would find the wrong file and keep it."""
    words = ["--profiles", "pinned", *(["--to", str(tmp_path / "models")] if to else [])]
    hub.files["config.json"] = b'{"a": 2}'
    done = download(*words)
    assert done.returncode == 1
    assert f"pinned: config.json is not the file that {REPO} published" in done.stderr
    assert f"{SUMS['config.json']} is expected. The file was removed" in done.stderr
    assert not list(tmp_path.rglob("config.json"))
    hub.files["config.json"] = FILES["config.json"]
    assert download(*words).returncode == 0


def test_a_file_that_the_user_put_there_is_not_removed(download: Download, hub: FakeHub, tmp_path: Path):
    """The command removes only files that it has written itself."""
    assert download("--profiles", "unsummed", "--to", str(tmp_path)).returncode == 0
    (tmp_path / "unsummed").rename(tmp_path / "pinned")
    own = tmp_path / "pinned/config.json"
    stamp = own.stat().st_mtime_ns
    own.write_bytes(b'{"a": 3}')
    os.utime(own, ns=(stamp, stamp))
    done = download("--profiles", "pinned", "--to", str(tmp_path))
    assert (done.returncode, own.read_bytes()) == (1, b'{"a": 3}')
    assert "config.json is not the file" in done.stderr
    assert f"Remove {own} to have it fetched again" in done.stderr


def test_a_hub_that_delivers_another_commit_is_refused(download: Download, hub: FakeHub, tmp_path: Path):
    """A mirror may answer with the newest commit that it has."""
    hub.commit = "f" * 40
    done = download("--profiles", "unsummed", "--to", str(tmp_path / "models"))
    assert done.returncode == 1
    assert f"asked for {REPO} at commit {COMMIT}, the hub delivered {'f' * 40}" in done.stderr
    assert hub.fetched == []


def test_another_commit_may_be_named(download: Download, tmp_path: Path):
    """The checksums of the pinned commit do not apply to another commit."""
    done = download("--profiles", "elsewhere", "--commit", COMMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not known here") == 2
    assert done.stdout.endswith(f"Use with WEIGHTS=hub:{COMMIT}\n")
    assert download("--profiles", "unpinned", "--commit", COMMIT).returncode == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "required: --profiles"),
        (("--profiles", " ,"), "--profiles names no profile"),
        (("--profiles", "pinned,nobodys"), "Unknown profile 'nobodys'. Known: "),
        (("--profiles", "voxtral"), "voxtral has nothing to fetch: Mistral has not published"),
        (("--profiles", "unpinned"), f"no commit of {REPO} is pinned: name one with --commit"),
        (("--profiles", "pinned", "--commit", "main"), "'main' is not a commit: 40 hex digits"),
        (("--profiles", "pinned,bare", "--commit", COMMIT), "--commit belongs to one repository"),
        (("--profile", "pinned"), "required: --profiles"),
    ],
)
def test_what_cannot_be_fetched_is_wrong_usage(
    download: Download, hub: FakeHub, words: tuple[str, ...], says: str
):
    """Wrong usage fetches nothing, not even the profiles that could be fetched."""
    done = download(*words)
    assert done.returncode == 2
    assert says in done.stderr
    assert hub.asked == []


def test_a_profile_without_files_needs_none(download: Download, hub: FakeHub):
    """Such a profile computes its artifact without a model."""
    done = download("--profiles", "bare")
    assert (done.returncode, hub.asked) == (0, [])
    assert "bare needs no files" in done.stdout


@pytest.mark.parametrize(
    ("refusal", "status", "says"),
    [
        ((404, "RepoNotFound"), 1, f"the hub has no {REPO}, or none that HF_TOKEN may see"),
        ((403, "GatedRepo"), 1, f"{REPO} is gated: accept its terms there, and set HF_TOKEN"),
        ((404, "RevisionNotFound"), 1, f"{REPO} has no commit {COMMIT}"),
        ((404, "EntryNotFound"), 1, f"{REPO} at commit {COMMIT} has no config.json"),
    ],
)
def test_each_refusal_of_the_hub_is_reported_in_one_line(
    download: Download, hub: FakeHub, refusal: tuple[int, str], status: int, says: str
):
    """The user sees one line instead of the library's traceback."""
    hub.refusal = refusal
    done = download("--profiles", "pinned")
    assert (done.returncode, done.stderr.count("\n")) == (status, 1), done.stderr
    assert says in done.stderr


def test_offline_has_an_exit_status_of_its_own(download: Download, hub: FakeHub):
    """The message names HF_HUB_OFFLINE, because users forget that they have set it."""
    done = download("--profiles", "pinned", HF_HUB_OFFLINE="1")
    assert (done.returncode, hub.asked) == (3, [])
    assert f"{REPO} at commit {COMMIT} is not cached, and the hub cannot deliver it" in done.stderr
    assert "(HF_HUB_OFFLINE is set)" in done.stderr
    assert download("--profiles", "pinned").returncode == 0
    assert download("--profiles", "pinned", HF_HUB_OFFLINE="1").returncode == 0, "all is there"


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_unreachable(download: Download):
    """The library retries for a while before it gives up."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    done = download("--profiles", "pinned", HF_ENDPOINT=f"http://127.0.0.1:{port}")
    assert done.returncode == 3
    assert "is not cached, and the hub cannot deliver it (ConnectError): config.json missing" in done.stderr


def test_a_folder_that_cannot_be_written_is_named(download: Download, tmp_path: Path):
    """The message also gives the reason."""
    (tmp_path / "file").write_text("")
    done = download("--profiles", "pinned", "--to", str(tmp_path / "file"))
    assert done.returncode == 1
    assert str(tmp_path / "file") in done.stderr
    assert "Not a directory" in done.stderr


def test_help_names_what_can_be_fetched(download: Download):
    """The help does not list Voxtral, whose encoder is not published."""
    done = download("--help")
    assert done.returncode == 0
    assert "qwen3-tts-0.6b" in done.stdout
    assert "voxtral" not in done.stdout


def test_it_imports_no_torch():
    """A machine that only fetches files need not have torch, and does not wait for its import."""
    program = (
        "import sys, services.extractor_worker.weights.download as _; print({'torch'} & sys.modules.keys())"
    )
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_hub_is_asked_for_nothing_but_files(download: Download, hub: FakeHub):
    """By default the library asks the hub for a list of agents, to report which one runs it. That request
    must not be made.
    """
    assert download("--profiles", "pinned").returncode == 0
    assert hub.other_requests == []
    assert download("--profiles", "unsummed", HF_HUB_DISABLE_TELEMETRY="0").returncode == 0
    assert hub.other_requests != [], "whoever wants that can have it"


FETCHABLE = sorted(name for name, profile in BUILT_IN.items() if not profile.not_extractable)
COMMAND = re.compile("`([^`]+)`")


def requested_files(words: Sequence[str]) -> list[ProfileFiles]:
    """Return the files that the command would fetch for these arguments."""
    catalogue = ProfileCatalogue.load(())
    return list(_requested_files(_parser("download", catalogue).parse_args(words), catalogue))


def named(source: LocalWeights | HubWeights, profile: str, **filled_in: str) -> list[str]:
    """Return the words of the command in the message about missing weights."""
    with pytest.raises(WeightsMissing) as caught:
        locate(source, profile=profile, weights=BUILT_IN[profile].weights)
    [command] = COMMAND.findall(str(caught.value))
    return [filled_in.get(word, word) for word in shlex.split(command)]


@pytest.mark.parametrize("profile", FETCHABLE)
def test_the_command_that_messages_name_is_valid(
    profile: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The command works from the worker's working directory and with its interpreter.

    A shell takes its words literally, and it brings the files to where they were missing.
    """
    monkeypatch.chdir(ROOT)
    weights = BUILT_IN[profile].weights
    python, *words = named(LocalWeights(tmp_path), profile, FOLDER=str(tmp_path), HEX=COMMIT)
    assert shutil.which(python)
    assert words[:3] == ["-m", "services.extractor_worker", "download"]
    assert requested_files(words[3:]) == [ProfileFiles(BUILT_IN[profile], weights.commit or COMMIT, tmp_path)]


@pytest.mark.usefixtures("hub_cache")
def test_the_command_for_the_hubs_cache_is_valid():
    profile = BUILT_IN["dac-16khz"]
    words = named(HubWeights(), profile.name)
    assert requested_files(words[4:]) == [ProfileFiles(profile, str(profile.weights.commit), None)]
    words = named(HubWeights(COMMIT), profile.name)
    assert requested_files(words[4:]) == [ProfileFiles(profile, COMMIT, None)]


def test_a_command_s_words_stay_what_they_are():
    """The name of a folder may contain a blank."""
    assert shlex.split(download_command("x", to="my models"))[-2:] == ["--to", "my models"]


def test_every_profile_of_ours_that_is_pinned_can_be_named():
    """Every profile but one has a pinned commit, so `download` and WEIGHTS=hub need no other setting."""
    pinned = {name: commit for name in FETCHABLE if (commit := BUILT_IN[name].weights.commit)}
    assert sorted({*pinned, "ming-tts"}) == FETCHABLE
    together = requested_files(["--profiles", ",".join(pinned)])
    assert {one.profile.name: one.commit for one in together} == pinned
    assert all(commit_of(HubWeights(), BUILT_IN[name].weights) == commit for name, commit in pinned.items())


def script(folder: Path, *, forget: str = "") -> subprocess.CompletedProcess[str]:
    """Run `speaker-registry-worker download --help` in any folder."""
    program = (
        "import sys; from speaker_registry.worker_script import main;"
        "sys.argv = ['/usr/bin/speaker-registry-worker', 'download', '--help'];"
        f"sys.path[:] = [one for one in sys.path if one not in ('', {forget!r})]; sys.exit(main())"
    )
    words = [sys.executable, "-c", program]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def test_the_script_is_the_module_from_anywhere(tmp_path: Path):
    """The script's usage message has the script's own name."""
    done = script(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: speaker-registry-worker download")


def test_where_only_the_sdk_is_installed_the_script_says_so(tmp_path: Path):
    """The wheel contains no services."""
    done = script(tmp_path, forget=str(ROOT))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("speaker-registry-worker: the worker is not part of the installed package;")
    assert done.stderr.count("\n") == 1


def test_a_worker_takes_no_other_words():
    """The environment configures a worker, and a mistyped command must not start one."""
    words = [sys.executable, "-m", "services.extractor_worker", "downlaod"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: python -m services.extractor_worker ")
    assert "'downlaod'" in done.stderr


def test_two_profiles_of_one_name_are_a_message_and_no_traceback(download: Download, tmp_path: Path) -> None:
    """The error is found before the arguments are parsed."""
    metadata = tmp_path / "package/again-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: again\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[speaker_registry.profiles]\npinned = brought:pinned\n")
    refused = download("--profiles", "pinned")
    assert refused.returncode == REFUSED
    assert "Profile 'pinned' is defined by" in refused.stderr
    assert "Traceback" not in refused.stderr
