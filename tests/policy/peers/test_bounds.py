"""Parameters of other routers' policies that are out of bounds, and what is to be written."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError

OUT_OF_BOUNDS = [
    ("aibrix-prefix-cache-scorer", "imbalanceAbsCount: -1", "write requests, such as 16"),
    ("aibrix-prefix-cache-scorer", "standardDeviationFactor: -0.5", "write a factor, such as 2"),
    ("aibrix-prefix-cache-scorer", "blockNumber: 0", "write blocks, such as 200000"),
    ("aibrix-prefix-cache-scorer", "evictionDurationMins: 0", "write minutes, such as 20"),
    ("aibrix-vtc-basic-scorer", "fairnessWeight: -1", "write a weight, such as 1"),
    ("aibrix-vtc-basic-scorer", "outputRatio: -1", "write a ratio, such as 1.5"),
    ("aibrix-vtc-basic-scorer", "maxPodLoad: 0", "write requests, such as 100"),
    ("aibrix-vtc-basic-scorer", "windowMinutes: 0", "write minutes, such as 5"),
    ("aibrix-vtc-basic-scorer", "minTokens: 0", "write tokens, such as 1000"),
    ("d2lpm-scorer", "workerQuantum: 0", "write tokens, such as 10000"),
    ("d2lpm-scorer", "outputTokenWeight: -1", "write a weight, such as 2"),
    ("dualmap-scorer", "ttftSloSeconds: -1", "write seconds, such as 5"),
    ("dualmap-scorer", "prefixCharLength: 0", "write characters, such as 100"),
    ("kthena-least-latency-scorer", "TTFTTPOTWeightFactor: 2", "write a share, 0 to 1"),
    ("kthena-least-request-scorer", "maxWaitingRequests: 0", "write requests, such as 10"),
    ("kthena-prefix-cache-scorer", "maxBlocksToMatch: 0", "write blocks, such as 128"),
    ("kthena-prefix-cache-scorer", "maxHashCacheSize: 0", "write blocks, such as 50000"),
    ("kthena-prefix-cache-scorer", "topKMatches: 0", "write endpoints, such as 5"),
    ("kubeai-chwbl-scorer", "meanLoadFactor: 99", "write percent, such as 125"),
    ("kubeai-chwbl-scorer", "replication: 0", "`replication` is 0, below 1"),
    ("kubeai-chwbl-scorer", "prefixCharLength: 0", "write characters, such as 100"),
    ("kubeai-chwbl-scorer", "prefixCharLength: -1234567", "`prefixCharLength` is -1234567, below"),
    ("ray-prefix-affinity-scorer", "matchRateThreshold: 1.0000001", "is 1.0000001, above 1;"),
    ("preble-e2-scorer", "windowSeconds: 0", "write seconds, such as 180"),
    ("preble-e2-scorer", "rebalanceRatio: 0.9", "write a multiple, such as 1.5"),
    ("preble-e2-scorer", "rebalanceRequests: -1", "write requests, such as 50"),
    ("preble-e2-scorer", "outputTokens: 0", "write tokens, such as 45"),
    ("preble-e2-scorer", "secondsPerOutputToken: 0", "write seconds, such as 0.15"),
    ("production-stack-load-aware-scorer", "beta: -1", "write the weight of the load"),
    (
        "production-stack-prefix-aware-scorer",
        "prefixMinMatchLength: -1",
        "write characters, such as 4096",
    ),
    ("production-stack-prefix-aware-scorer", "maxBlocks: 0", "write blocks, such as 1000000"),
    ("production-stack-session-scorer", "sessionKey: ' '", "write a header, such as x-user-id"),
    ("production-stack-session-scorer", "", "sessionKey"),
    ("ray-prefix-affinity-scorer", "imbalancedThreshold: -1", "write requests, or leave it out"),
    ("ray-prefix-affinity-scorer", "matchRateThreshold: 1.5", "write a share, 0 to 1"),
    ("ray-prefix-affinity-scorer", "evictionThresholdChars: 100", "such as 360000 and 400000"),
    ("ray-prefix-affinity-scorer", "evictionTargetChars: 0", "such as 360000 and 400000"),
    ("ray-prefix-affinity-scorer", "evictionIntervalSecs: 0", "write seconds, such as 10"),
]


@pytest.mark.parametrize(("kind", "parameters", "words"), OUT_OF_BOUNDS)
def test_what_is_out_of_bounds_is_an_error_that_says_what_to_write(kind, parameters, words):
    with pytest.raises(ConfigError, match=words):
        load(f"plugins: [{{type: {kind}, parameters: {{{parameters}}}}}]")
