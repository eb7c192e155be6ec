"""One person's way through the pages, in a real browser against all real parts: API process, worker with an
encoder, Valkey and SeaweedFS.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from services.shared.configuration.store import StoreSettings
from tests.integration.api.access import BOOTSTRAP
from tests.integration.api.browser import CHROMIUM, NO_CHROMIUM, PATIENCE_MS, Open, chromium, opener
from tests.integration.conftest import bucket_settings
from tests.processes import RegistryProcesses
from tests.servers import S3Server

CLIPS = Path(__file__).parents[3] / "examples/clips"
PROFILE = "ecapa-voxceleb"


def variables_of(store: StoreSettings) -> dict[str, str]:
    """Return the environment variables of these settings."""
    assert store.secret_access_key
    values = store.model_dump(exclude_none=True, exclude_defaults=True)
    values["secret_access_key"] = store.secret_access_key.get_secret_value()
    return {f"SPEAKER_STORE_{name.upper()}": str(value) for name, value in values.items()}


@pytest.fixture
def visit(tmp_path: Path, seaweedfs_server: S3Server) -> Iterator[Open]:
    expect.set_options(timeout=PATIENCE_MS)
    environment = {
        "SPEAKER_AUTH_BOOTSTRAP_KEY": str(BOOTSTRAP),
        "SPEAKER_EXTRACTOR_WEIGHTS": "untrained",
        "SPEAKER_EXTRACTOR_CACHE": str(tmp_path / "proofs"),
    }
    registry = RegistryProcesses(
        tmp_path,
        environment=environment,
        profiles={"SPEAKER_PROFILES": PROFILE, "SPEAKER_EXTRACTOR_PROFILES": PROFILE},
        worker="services.extractor_worker",
        store=variables_of(bucket_settings(seaweedfs_server)),
    )
    with registry, chromium() as browser, opener(browser, registry.urls[0]) as visit:
        yield visit


def register(page: Page, clip: str, button: str) -> None:
    """Fill in the form and wait until the worker has made the artifact."""
    page.locator("#clip").set_input_files(CLIPS / clip)
    page.get_by_label("Consent").fill("synthesised")
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.locator(".summary .state")).to_have_text("ready")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason=NO_CHROMIUM)
def test_a_person_goes_the_whole_way(visit: Open):
    """Sign in, register, hear, compare, roll back and undo it, revoke a key, delete and undelete."""
    page = visit("/voices/@new")
    page.locator("[name=name]").fill("wren")
    register(page, "wren.flac", "Register")
    page.locator("audio").evaluate("audio => { audio.muted = true; return audio.play(); }")
    expect(page.get_by_role("img", name=re.compile("[Ww]aveform"))).to_be_visible()
    expect(page.get_by_text("untrained weights")).to_be_visible()

    page.get_by_role("link", name="New version").click()
    register(page, "robin.flac", "Add the version")
    page.get_by_role("link", name="Compare version 1 with version 2").click()
    expect(page.get_by_role("heading", name="Two versions compared")).to_be_visible()
    page.get_by_role("link", name="End the comparison").click()

    served = page.get_by_role("row").filter(has_text="served")
    page.get_by_role("button", name="Make default version 1").click()
    expect(served.get_by_role("link", name="1", exact=True)).to_be_visible()
    page.get_by_role("button", name="Undo").click()
    expect(served.get_by_role("link", name="2", exact=True)).to_be_visible()
    voice = page.url

    page.goto("/dashboard/keys")
    page.locator("details.card").evaluate("one => { one.open = true; }")
    page.locator("[name=name]").fill("engine")
    page.locator("[name='scope:voices:read']").check()
    page.get_by_role("button", name="Make the key").click()
    made = page.get_by_label("The new key").input_value()
    page.goto("/dashboard/keys")
    page.get_by_role("row", name=re.compile(made.split("_")[1])).get_by_text("Revoke…").click()
    page.get_by_role("button", name="Revoke the key").locator("visible=true").click()
    expect(page.get_by_role("row", name=re.compile(made.split("_")[1]))).to_contain_text("revoked")

    page.goto(voice)
    page.get_by_text("Delete…").first.click()
    page.get_by_role("button", name="Delete the voice").click()
    expect(page.get_by_text("it can be undeleted")).to_be_visible()
    page.get_by_role("button", name="Undelete it").click()
    expect(page.get_by_text("Voice undeleted")).to_be_visible()
    expect(page.locator(".summary .state")).to_have_text("ready")
    expect(page.locator("audio")).to_have_count(1)
