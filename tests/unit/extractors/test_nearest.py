"""The nearest codebook entry is the one that engines find, even among almost equally near ones."""

import torch

from services.extractor_worker.models.nearest import nearest_entries


def test_it_is_the_nearest() -> None:
    torch.manual_seed(0)
    vectors, entries = torch.randn(300, 8), torch.randn(64, 8)
    found = nearest_entries(vectors, entries)
    assert torch.equal(found, torch.cdist(vectors.double(), entries.double()).argmin(dim=1))
    assert found.dtype == torch.int64


def test_of_equals_the_first_one_counts() -> None:
    """Codebooks have equal entries, because training never separated them."""
    entries = torch.tensor([[9.0, 9.0], [1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    assert nearest_entries(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), entries).tolist() == [1, 1]


def test_the_closest_calls_are_the_packages() -> None:
    """The search is compared with SpeechTokenizer's own lines. The entries differ only in the last bits."""
    torch.manual_seed(0)
    vectors = torch.randn(2000, 16)
    entries = torch.randn(8, 16).repeat(16, 1) + torch.randn(128, 16) * 1e-7
    embed = entries.t()
    distances = -(
        vectors.pow(2).sum(1, keepdim=True) - 2 * vectors @ embed + embed.pow(2).sum(0, keepdim=True)
    )
    assert torch.equal(nearest_entries(vectors, entries), distances.max(dim=-1).indices)
