"""Whether servers count as many tokens as were made here: else the tokenizer is not theirs."""

import structlog

from epp.model.request import Decision, InferenceRequest, RequestId
from epp.protocol.extproc.record import RequestRecord

_log = structlog.get_logger(__name__)


class TokenCountCheck:
    """Compares lengths, and says the first time that they differ."""

    def __init__(self) -> None:
        self._made: dict[RequestId, int] = {}
        self.equal = 0
        self.different = 0

    def decided(self, request: InferenceRequest, decision: Decision) -> None:
        """Take note of a request that goes to a server; only token ids say how many there are."""
        if request.prompts and all(prompt.exact for prompt in request.prompts):
            self._made[request.id] = decision.prompt_tokens

    def ended(self, record: RequestRecord) -> None:
        """Compare with what the server said, if it did."""
        made = self._made.pop(record.id, None)
        if made is None or record.usage is None or not record.usage.prompt_tokens:
            return
        counted = record.usage.prompt_tokens
        if counted == made:
            self.equal += 1
            return
        self.different += 1
        if self.different == 1:
            _log.warning(
                "tokens.differ",
                made=made,
                counted=counted,
                model=record.request.target_model if record.request else "",
                remedy="give token-producer the model server's own tokenizer and chat template",
            )
