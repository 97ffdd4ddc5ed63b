import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import Endpoint
from epp.model.events import EndpointRemoved, EndpointUpserted, Listed
from epp.protocol.kube.object_warnings import ObjectWarnings
from epp.protocol.kube.objects import KubePod
from epp.protocol.kube.pool_state import PoolState
from tests.protocol.kube.objects import LABELS, pod, pool, read


def state(*pods, ports=(8000,)):
    made = PoolState(ObjectWarnings())
    made.set_pool(read(pool(ports=ports)))
    made.upsert_pods([read(each) for each in pods])
    made.retain_pods({each["metadata"]["name"] for each in pods})
    return made


def summary(event):
    match event:
        case EndpointUpserted(endpoint):
            return "up", endpoint.id, endpoint.target
        case EndpointRemoved(endpoint_id):
            return "gone", endpoint_id
        case _:
            return (type(event).__name__,)


def told(made):
    return [summary(event) for event in made.drain_events()]


def upserted(made):
    return [each.endpoint for each in made.drain_events() if isinstance(each, EndpointUpserted)]


def test_pool_and_pods_become_events_and_then_listed():
    made = state(pod("a", "10.0.0.1"), pod("b", "fd00:0::0002"), ports=(8000, 8001))
    events = made.drain_events()
    assert list(map(summary, events)) == [
        ("up", "default/a-rank-0", "10.0.0.1:8000"),
        ("up", "default/a-rank-1", "10.0.0.1:8001"),
        ("up", "default/b-rank-0", "[fd00::2]:8000"),
        ("up", "default/b-rank-1", "[fd00::2]:8001"),
        ("Listed",),
    ]
    first = events[0].endpoint
    assert (first.uid, first.labels, first.rank) == ("uid-a", LABELS, None)


def test_an_endpoint_has_its_pods_name_and_what_the_pod_says_of_its_host():
    document = pod("a", "10.0.0.1")
    document["spec"] = {"hostname": "gpu-1", "nodeName": "node-1"}
    document["status"] |= {"hostIP": "FD00:0::9", "hostIPs": [{"ip": "fd00::9"}]}
    (found,) = upserted(state(document))
    assert (found.name, found.pod) == ("a-rank-0", "a")
    assert (found.hostname, found.node_address) == ("gpu-1", "fd00::9")
    (plain,) = upserted(state(pod("a", "10.0.0.1")))
    assert (plain.hostname, plain.node_address) == ("", "")


def test_an_endpoint_has_the_index_of_its_port_and_no_rank():
    made = state(pod("a", ports="8002,8001"), ports=(8000, 8001, 8002))
    found = [(each.port, each.port_index, each.rank) for each in upserted(made)]
    assert found == [(8001, 1, None), (8002, 2, None)]


def test_pods_that_share_an_address_have_each_the_ports_that_they_say():
    decode = pod("d", ports="8000", labels={**LABELS, "llm-d.ai/role": "decode"})
    prefill = pod("p", ports="8200", labels={**LABELS, "llm-d.ai/role": "prefill"})
    for pods in ([decode, prefill], [prefill, decode]):
        found = {
            each.port: each.labels["llm-d.ai/role"]
            for each in upserted(state(*pods, ports=(8000, 8200)))
        }
        assert found == {8000: "decode", 8200: "prefill"}


def test_what_a_pool_speaks_is_said_of_its_endpoints_and_changes_no_engine():
    made = state(pod("a", "10.0.0.1"))
    (before,) = upserted(made)
    for protocol in ("kubernetes.io/h2c", "http", ""):
        document = pool()
        document["spec"] |= {"appProtocol": protocol} if protocol else {}
        made.set_pool(read(document))
        (event,) = made.drain_events()
        assert summary(event) == ("up", "default/a-rank-0", "10.0.0.1:8000")
        after = event.endpoint
        assert (after.app_protocol, after.engine) == (protocol, before.engine)
        made.set_pool(read(document))
        assert told(made) == []


@pytest.mark.parametrize(
    "absent",
    [
        pod("a", ready=False),
        pod("a", going=True),
        pod("a", ip=""),
        pod("a", ip="no:address"),
        pod("a", ports=""),
        pod("a", ports="9999"),
        pod("a", ports="x"),
    ],
    ids=["not ready", "terminating", "no IP", "no address", "no port", "other port", "malformed"],
)
def test_these_pods_are_no_endpoints(absent):
    made = state(pod("a"))
    made.drain_events()
    made.upsert_pods([read(absent)])
    assert told(made) == [("gone", "default/a-rank-0")]
    made.upsert_pods([read(pod("a"))])
    assert told(made) == [("up", "default/a-rank-0", "10.0.0.1:8000")]


@pytest.mark.parametrize(
    ("declared", "annotation", "ranks"),
    [
        ("8001", "llm-d.ai/active-ports", [1]),
        (" 8002 ,8000", "llm-d.ai/active-ports", [0, 2]),
        ("8001,x,70000,-1,²", "inference.networking.k8s.io/active-ports", [1]),
        ("8000", "example.com/active-ports", [0, 1, 2]),
    ],
)
def test_a_pod_may_serve_some_of_the_ports(declared, annotation, ranks):
    made = state(pod("a", ports=declared, annotation=annotation), ports=(8000, 8001, 8002))
    assert [each.name for each in upserted(made)] == [f"a-rank-{rank}" for rank in ranks]


def test_the_newer_annotation_wins():
    both = pod("a", ports="8000")
    both["metadata"]["annotations"]["inference.networking.k8s.io/active-ports"] = "8001"
    made = state(both, ports=(8000, 8001))
    assert [each.port for each in upserted(made)] == [8000]


def test_a_malformed_annotation_is_warned_of_once():
    warnings = ObjectWarnings()
    made = PoolState(warnings)
    made.set_pool(read(pool(ports=(8000, 8001))))
    for _ in range(3):
        made.upsert_pods([read(pod("a", ports="8000, eight"))])
    (note,) = warnings.drain()
    assert note.event == "pod.active_ports_malformed"
    assert note.fields == {"object": "pod/a", "no_ports": "eight", "instead": "passed over"}
    made.upsert_pods([read(pod("a", ports="8000"))])
    assert warnings.drain() == []
    made.upsert_pods([read(pod("a", ports="eight"))])
    assert len(warnings.drain()) == 1
    made.remove_pods(["a"])
    made.upsert_pods([read(pod("a", ports="eight"))])
    assert len(warnings.drain()) == 1


@pytest.mark.parametrize(("declared", "said"), [("8300", "8300"), ("8300,, x", "8300, x")])
def test_ports_none_of_which_the_pool_has_are_warned_of(declared, said):
    warnings = ObjectWarnings()
    made = PoolState(warnings)
    made.set_pool(read(pool(ports=(8000, 8001))))
    for harmless in ("", ",", "8001,8300"):
        made.upsert_pods([read(pod("a", ports=harmless))])
    assert warnings.drain() == []
    made.upsert_pods([read(pod("a", ports=declared))])
    (note,) = warnings.drain()
    assert (note.event, note.fields["no_ports"]) == ("pod.active_ports_malformed", said)


def test_an_update_without_a_change_has_no_events():
    made = state(pod("a"))
    made.drain_events()
    made.upsert_pods([read(pod("a"))])
    made.set_pool(read(pool()))
    made.retain_pods({"a"})
    assert told(made) == []


def test_labels_change_an_endpoint_in_place():
    made = state(pod("a"))
    made.drain_events()
    made.upsert_pods([read(pod("a", labels={**LABELS, "llm-d.ai/role": "decode"}))])
    assert told(made) == [("up", "default/a-rank-0", "10.0.0.1:8000")]


@pytest.mark.parametrize("again", [pod("a", uid="other"), pod("a", "10.0.0.2")])
def test_one_name_with_another_uid_or_address_is_another_engine(again):
    made = state(pod("a"))
    made.drain_events()
    made.upsert_pods([read(again)])
    (removed, added) = told(made)
    assert (removed, added[:2]) == (("gone", "default/a-rank-0"), ("up", "default/a-rank-0"))


def test_a_reused_address_is_the_younger_pods_while_it_is_there():
    old = pod("z", created="2026-01-01T00:00:00Z")
    new = pod("a", created="2026-01-01T00:00:01Z")
    made = state(old)
    made.drain_events()
    made.upsert_pods([read(new)])
    taken = [("gone", "default/z-rank-0"), ("up", "default/a-rank-0", "10.0.0.1:8000")]
    assert told(made) == taken
    made.upsert_pods([read(old)])
    assert told(made) == []
    made.remove_pods(["a"])
    assert told(made) == [
        ("gone", "default/a-rank-0"),
        ("up", "default/z-rank-0", "10.0.0.1:8000"),
    ]


def test_changed_ports_change_their_endpoints_only():
    made = state(pod("a"), ports=(8000, 8001))
    made.drain_events()
    made.set_pool(read(pool(ports=(8000, 9001))))
    assert told(made) == [
        ("gone", "default/a-rank-1"),
        ("up", "default/a-rank-1", "10.0.0.1:9001"),
    ]
    made.set_pool(read(pool(ports=(8000,))))
    assert told(made) == [("gone", "default/a-rank-1")]


def test_another_selector_keeps_its_old_pods_until_the_new_ones_are_listed():
    made = state(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"))
    made.drain_events()
    made.set_pool(read(pool(labels={"app": "other"})))
    assert (told(made), made.selector) == ([], {"app": "other"})
    made.upsert_pods([read(pod("c", "10.0.0.3"))])
    made.retain_pods({"b", "c"})
    assert told(made) == [("up", "default/c-rank-0", "10.0.0.3:8000"), ("gone", "default/a-rank-0")]


def test_scaled_to_zero_it_is_complete():
    made = state(pod("a"))
    made.remove_pods(["a"])
    assert made.complete
    assert told(made)[-1] == ("gone", "default/a-rank-0")


@pytest.mark.parametrize("kept", [False, True])
def test_a_deleted_pool_removes_its_endpoints_until_it_is_back(kept):
    made = state(pod("a"))
    made.drain_events()
    if kept:  # by a finalizer
        going = pool()
        going["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z"
        made.set_pool(read(going))
    else:
        made.remove_pool()
    assert (told(made), made.complete) == ([("gone", "default/a-rank-0")], False)
    made.set_pool(read(pool()))
    assert (told(made), made.complete) == ([], False)
    made.upsert_pods([read(pod("a"))])
    made.retain_pods({"a"})
    assert told(made) == [("up", "default/a-rank-0", "10.0.0.1:8000"), ("Listed",)]
    assert made.complete


def test_without_a_pool_nothing_is_complete():
    made = PoolState(ObjectWarnings())
    made.retain_pods(set())
    assert (told(made), made.complete) == ([], False)


NAMES, ADDRESSES = ["a", "b", "c"], ["10.0.0.1", "10.0.0.2", ""]
PODS = st.builds(
    lambda name, ip, uid, ready, ports, age: pod(
        name, ip, uid=uid, ready=ready, ports=ports, created=f"2026-01-01T00:00:0{age}Z"
    ),
    st.sampled_from(NAMES),
    st.sampled_from(ADDRESSES),
    st.sampled_from(["1", "2"]),
    st.booleans(),
    st.sampled_from([None, "8000", "8001", "8000,8001", "?"]),
    st.integers(0, 2),
)
CHANGES = st.lists(
    st.one_of(
        PODS.map(lambda each: ("upsert_pods", [read(each)])),
        st.sampled_from(NAMES).map(lambda name: ("remove_pods", [name])),
        st.sets(st.sampled_from(NAMES)).map(lambda names: ("retain_pods", names)),
        st.sampled_from([(8000,), (8001, 8000), (8000, 8001)]).map(
            lambda ports: ("set_pool", read(pool(ports=ports)))
        ),
        st.just(("remove_pool",)),
    ),
    max_size=30,
)


class Oracle:
    """Computes the endpoints anew from all that there is."""

    def __init__(self):
        self.pods: dict[str, KubePod] = {}
        self.ports: list[int] = []

    def upsert_pods(self, pods):
        self.pods |= {each.metadata.name: each for each in pods}

    def remove_pods(self, names):
        self.retain_pods([name for name in self.pods if name not in names])

    def retain_pods(self, names):
        self.pods = {name: each for name, each in self.pods.items() if name in names}

    def set_pool(self, pool):
        self.ports = list(pool.spec.ports)

    def remove_pool(self):
        self.pods, self.ports = {}, []

    def endpoints(self):
        found = {}
        for each in sorted(self.pods.values(), key=lambda each: each.metadata.age):
            said = each.metadata.annotations.get("llm-d.ai/active-ports")
            ready = each.status.conditions[1].status == "True" and each.status.pod_ip
            for rank, port in enumerate(self.ports):
                if ready and (said is None or str(port) in said.split(",")):
                    name = f"default/{each.metadata.name}-rank-{rank}"
                    found[f"{each.status.pod_ip}:{port}"] = name, each.metadata.uid
        return found


@given(CHANGES)
def test_the_events_always_add_up_to_the_pool(changes):
    made, oracle = PoolState(ObjectWarnings()), Oracle()
    fleet: dict[str, Endpoint] = {}
    for name, *arguments in changes:
        getattr(made, name)(*arguments)
        getattr(oracle, name)(*arguments)
        for event in made.drain_events():
            if isinstance(event, EndpointUpserted):
                known = fleet.get(event.endpoint.id, event.endpoint)
                assert known.engine == event.endpoint.engine
                fleet[event.endpoint.id] = event.endpoint
            elif isinstance(event, EndpointRemoved):
                del fleet[event.endpoint_id]
            targets = [each.target for each in fleet.values()]
            assert len(targets) == len(set(targets))
        there = {each.target: (each.id, each.uid) for each in fleet.values()}
        assert there == oracle.endpoints()


def test_listed_is_among_the_events_of_each_completion():
    made = PoolState(ObjectWarnings())
    made.set_pool(read(pool()))
    made.retain_pods(set())
    made.retain_pods(set())
    assert made.drain_events() == [Listed()]
