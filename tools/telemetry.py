"""Metrics of a job through OpenTelemetry: `mezzo launch --metrics http://COLLECTOR:4318/v1/metrics`, or a reader.

It takes `pip install 'mezzo[opentelemetry]'`, and is imported when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from ..ops.errors import MissingPackage
from .job_metrics import METRICS, JobMetrics

INTERVAL = 5000  # milliseconds between two messages to a collector


def observed(metrics: JobMetrics, reader: Any) -> Any:
    """Give a reader of OpenTelemetry (`opentelemetry.sdk.metrics.export`) all metrics of a job; the provider, which is
    to be shut down. Raises MissingPackage."""
    try:
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
    except ImportError as error:
        raise _missing() from error
    provider = MeterProvider([reader], Resource.create({"service.name": "mezzo"}), shutdown_on_exit=False)
    meter = provider.get_meter("mezzo.job")

    def watched(name: str, options: Any) -> Iterable[Any]:
        return [Observation(value, labels) for labels, value in metrics.values(name)]

    for name, (kind, about) in METRICS.items():
        make: Callable[..., Any] = (
            meter.create_observable_counter if kind == "counter" else meter.create_observable_gauge
        )
        make(name, [partial(watched, name)], description=about)
    return provider


class ToCollector:
    """A collector that hears of them by OTLP over HTTP. Raises MissingPackage."""

    def __init__(self, metrics: JobMetrics, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        except ImportError as error:
            raise _missing() from error
        exporter = OTLPMetricExporter(endpoint=endpoint, timeout=INTERVAL // 1000)
        self._provider = observed(metrics, PeriodicExportingMetricReader(exporter, INTERVAL))

    def put(self) -> None:
        """It is told by itself."""

    def close(self) -> None:
        self._provider.shutdown(timeout_millis=INTERVAL)


def _missing() -> MissingPackage:
    return MissingPackage(
        "OpenTelemetry is not installed", where="--metrics", hint="pip install 'mezzo[opentelemetry]'"
    )
