"""What the picker learns of pods beside their load: the models that they serve."""

from e2e.corridor import CHAT, MODEL, REASON, Plan, chat, until

CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: least-ttft-picker
- type: models-data-source
  parameters: {interval: 100ms}
- type: models-data-extractor
- type: metrics-data-source
  parameters: {interval: 200ms}
- type: core-metrics-extractor
  parameters:
    engineConfigs:
    - name: mine
      queuedRequestsSpec: "vllm:num_requests_waiting"
      customMetrics:
      - {attributeKey: Preempted, metricSpec: "vllm:num_preemptions_total"}
dataLayer:
  sources:
  - pluginRef: models-data-source
    extractors: [{pluginRef: models-data-extractor}]
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
"""


async def test_a_model_that_no_pod_serves_is_not_found(start):
    plan = Plan(simulators=("a", "b"), picker_flags=("--config-text", CONFIG))
    async with start(plan) as gateway:
        answer = await gateway.post(CHAT, chat("hello"))
        assert answer.status == 200
        nobodys = {**chat("hello"), "model": "nobody's"}

        async def known():  # until each pod has said what it serves, one of them answers
            return REASON in (await gateway.post(CHAT, nobodys)).headers

        await until(known)
        answer = await gateway.post(CHAT, nobodys)
        assert (answer.status, answer.json["error"]["code"]) == (404, answer.headers[REASON])
        assert "nobody's" in answer.message
        answer = await gateway.post(CHAT, {**chat("hello again"), "model": MODEL})
        assert answer.status == 200
