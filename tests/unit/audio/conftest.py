"""One decoder for all tests of this folder: starting it takes longer than most of them."""

from collections.abc import Iterator

import pytest

from services.shared.audio import AudioDecoder
from services.shared.configuration.uploads import UploadLimits


@pytest.fixture(scope="session")
def decoder() -> Iterator[AudioDecoder]:
    with AudioDecoder(UploadLimits()) as decoder:
        yield decoder
