from lego.metrics import METRICS


def test_every_metric_is_defined_once_and_says_what_it_is():
    import lego.metrics

    assert len(METRICS) == len(lego.metrics._ALL)
    for metric in METRICS.values():
        assert "/" in metric.name and metric.definition and metric.better in ("", "up", "down")
