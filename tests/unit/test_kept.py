"""What the overview counts, kept for a moment."""

from services.registry_api.pages.kept import Kept


def test_each_namespace_is_counted_once_as_long_as_it_is_kept():
    """Many open pages cost little more than one, and show nobody another namespace's numbers."""
    counted: list[str] = []
    kept = Kept(lambda namespace: counted.append(namespace) or len(counted), lambda _: 3600)
    assert [kept.of(one) for one in ("ours", "theirs", "ours", "theirs")] == [1, 2, 1, 2]
    assert counted == ["ours", "theirs"]
    fleeting = Kept(lambda namespace: counted.append(namespace) or len(counted), lambda _: 0)
    assert [fleeting.of("ours"), fleeting.of("ours")] == [3, 4]
