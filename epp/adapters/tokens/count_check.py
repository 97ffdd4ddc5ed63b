"""Compares prompt lengths in tokens with those that model servers report.

They differ if the configured tokenizer or chat template is not the server's.
"""

from epp.model.decision import Decision
from epp.model.request import InferenceRequest, RequestId
from epp.protocol.extproc.record import RequestRecord
from epp.system.logs import Log

_log = Log(__name__)


class TokenCountCheck:
    """Logs the first difference."""

    def __init__(self) -> None:
        self._expected: dict[RequestId, int] = {}
        self._warned = False

    def decided(self, request: InferenceRequest, decision: Decision) -> None:
        """Record the length of a request's prompts, if they are token ids."""
        if request.prompts and all(prompt.exact for prompt in request.prompts):
            self._expected[request.id] = decision.prompt_tokens

    def ended(self, record: RequestRecord) -> None:
        """Compare the recorded length with the reported one, if there are both."""
        expected = self._expected.pop(record.id, None)
        if expected is None or record.usage is None or not record.usage.prompt_tokens:
            return
        counted = record.usage.prompt_tokens
        if counted != expected and not self._warned:
            self._warned = True
            _log.warning(
                "tokens.differ",
                made=expected,
                counted=counted,
                model=record.request.target_model if record.request else "",
                remedy="give token-producer the model server's own tokenizer and chat template",
            )
