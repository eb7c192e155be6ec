"""Tests of the counts of artifacts that a worker has made lately."""

from services.extractor_worker.pipeline.throughput import Throughput


def test_artifacts_count_for_an_hour():
    """The count follows the load, and memory stays bounded however long a worker runs."""
    now = 0.0
    throughput = Throughput(lambda: now)
    for minute in range(90):
        now = 60.0 * minute
        throughput.count("speech")
    throughput.count("codec")
    assert throughput.last_hour() == {"speech": 60, "codec": 1}
    now += 59 * 60
    assert throughput.last_hour() == {"speech": 1, "codec": 1}
    now += 60
    assert throughput.last_hour() == {}
    assert len(throughput._minutes) == 60
