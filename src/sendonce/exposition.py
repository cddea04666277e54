"""What a process shows to Prometheus: its own counts, and what it last saw in the store.

    shown = Exposition(lambda: store.read(lambda tx: gauges(tx, policy)))
    shown.look()              # blocks: reads the store
    shown.text()              # the text format; asks nobody

Many processes on many machines share one store, and each shows itself at an address of its own: nothing is
shared between them, so no count is lost or doubled, and Prometheus adds the address as `instance`. What comes
from the store is the same everywhere; a rule takes the `max` of it.

The text is the library's (`prometheus_client`), which is the optional extra `metrics`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sendonce.metrics import BUILD, METRICS, Counter, Gauge, Histogram, Metric, Sample, Spread
from sendonce.runtime.poller import rest_after

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S: Final = 5.0
"""How long what was seen in the store is shown before it is looked at again, at least."""
STALE_S: Final = 60.0
"""After so long without a look it is shown no more: no value is better than an old one."""


class Exposition:
    """Of one process. `seen` reads the store; it may raise, and then the last look stands for a while."""

    def __init__(
        self, seen: Callable[[], Sequence[Sample]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seen = seen
        self._clock = clock
        self._looking = threading.Lock()
        self._samples: Sequence[Sample] = ()
        self._looked_at = float("-inf")
        self._rest_s = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Ours(self._fresh))
        ProcessCollector(registry=self._registry)

    def look(self) -> None:
        """Look into the store where the last look is old enough (`rest_after`). Blocks; one at a time."""
        with self._looking:
            begun = self._clock()
            if begun - self._looked_at >= self._rest_s:
                self._samples = tuple(self._seen())
                self._looked_at = self._clock()
                self._rest_s = rest_after(self._looked_at - begun, FRESH_S)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _fresh(self) -> Sequence[Sample]:
        return self._samples if self._clock() - self._looked_at <= STALE_S else ()


class _Ours(Collector):
    """The catalogue, for the library."""

    def __init__(self, samples: Callable[[], Sequence[Sample]]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Family]:
        samples = self._samples()
        for metric in METRICS.values():
            yield _family(metric, samples)


def _family(metric: Metric, samples: Sequence[Sample]) -> Family:
    if metric is BUILD:  # a gauge by convention, and counted by nobody
        build = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        build.add_metric([version("sendonce")], 1)
        return build
    match metric:
        case Counter():
            counted = CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, count in sorted(metric.counts().items()):
                counted.add_metric(labels, count)
            return counted
        case Histogram():
            spread = HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for labels, seen in sorted(metric.spreads().items(), key=lambda item: item[0]):
                spread.add_metric(labels, _cumulative(metric.bounds, seen), seen.total)
            return spread
        case Gauge():
            gauge = GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
            for sample in samples:
                if sample.gauge is metric:
                    gauge.add_metric(sample.labels, sample.value)
            return gauge
        case _:
            raise TypeError(f"{metric.name} is of no kind that can be shown")


def _cumulative(bounds: Sequence[float], seen: Spread) -> list[tuple[str, float]]:
    total, buckets = 0, []
    for bound, count in zip((*bounds, float("inf")), seen.buckets, strict=True):
        total += count
        buckets.append(("+Inf" if bound == float("inf") else str(bound), float(total)))
    return buckets
