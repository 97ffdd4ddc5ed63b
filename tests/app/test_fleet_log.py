"""What operators see of endpoints that are left out: counts, a gauge, and log lines."""

import pytest
from structlog.testing import capture_logs

from epp.app.fleet_log import FleetLog
from epp.model.endpoint import EndpointId
from epp.model.events import Ejected, EjectionReason, Returned
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Failure, Finished
from tests.model.rig import LONG, Rig

POD = EndpointId("default/pod-0")


def page(log):
    return "".join(family.text(openmetrics=False) for family in log.collect())


def test_ejections_are_counted_and_logged():
    rig = Rig()
    log = FleetLog(rig.fleet)
    assert "warmpick_ejected_endpoints 0" in page(log)
    with capture_logs() as lines:
        for number in range(5):
            rig.send("pod-0", f"r{number}", LONG)
            rig.now += 1
            rig.apply(Aborted(RequestId(f"r{number}"), refused=True, failure=Failure.GATEWAY))
    assert lines == [
        {
            "event": "endpoint.ejected",
            "log_level": "warning",
            "endpoint": POD,
            "reason": "consecutive_failures",
            "seconds": 30.0,
        }
    ]
    text = page(log)
    assert 'warmpick_endpoint_ejections_total{reason="consecutive_failures"} 1' in text
    assert 'warmpick_endpoint_ejections_total{reason="stall"} 0' in text
    assert "warmpick_ejected_endpoints 1" in text
    rig.now += 31
    with capture_logs() as lines:
        rig.ask(LONG)
    assert [(line["event"], line["endpoint"]) for line in lines] == [("endpoint.returned", POD)]
    assert "warmpick_ejected_endpoints 0" in page(log)


def test_endpoints_that_sleep_are_counted():
    rig = Rig()
    log = FleetLog(rig.fleet)
    assert "warmpick_asleep_endpoints 0" in page(log)
    rig.report("pod-1", awake=False)
    assert "warmpick_asleep_endpoints 1" in page(log)
    rig.report("pod-1", awake=True)
    assert "warmpick_asleep_endpoints 0" in page(log)


def test_corrections_are_counted_and_logged():
    rig = Rig()
    log = FleetLog(rig.fleet)
    assert "warmpick_corrected_requests_total 0" in page(log)
    rig.send("pod-0", "r", LONG, stream=False)
    with capture_logs() as lines:
        for number in range(12):
            load = {"counted": True, "running": 1.0 if number == 0 else 0.0, "at": rig.now}
            rig.report("pod-0", **load)
            rig.now += 31
    assert lines == [
        {"event": "books.corrected", "log_level": "error", "endpoint": POD, "requests": 1}
    ]
    assert "warmpick_corrected_requests_total 1" in page(log)
    assert rig.fleet.in_flight == {}


def test_what_another_replica_found_counts_too():
    rig = Rig()
    log = FleetLog(rig.fleet)
    rig.apply(Ejected(POD, EjectionReason.STALL, 60.0))
    assert list(rig.ask(LONG)) == ["pod-1"]
    assert 'warmpick_endpoint_ejections_total{reason="stall"} 1' in page(log)
    rig.apply(Returned(POD))
    assert list(rig.ask(LONG)) == ["pod-0", "pod-1"]


@pytest.mark.parametrize("asked", [LONG, "short"])
@pytest.mark.parametrize("skips", [False, True])  # vLLM counts no prompt with `prompt_logprobs`
def test_reports_that_are_frozen_are_logged_once_for_each_endpoint(asked, skips):
    rig = Rig()
    FleetLog(rig.fleet)
    after = 60 + 3 + 1  # from when on they count, of these three, and a report that is newer
    page = {"running": 12, "waiting": 8, "cache_queries": 5.0}
    with capture_logs() as logs:
        for copy in range(2):
            for second in range(70):
                rig.now += 1
                rig.report("pod-0", **page, at=rig.now)
                rig.send("pod-0", f"{copy} {second}", asked, skip_reading_prefix_cache=skips)
                usage = Usage(prompt_tokens=9, completion_tokens=1)
                rig.apply(Finished(RequestId(f"{copy} {second}"), usage))
            page["cache_queries"] += 1
    told = [each for each in logs if each["event"] == "endpoint.metrics_frozen"]
    found = [(each["endpoint"], each["seconds"]) for each in told]
    assert found == ([] if skips else [("default/pod-0", after)])
