"""An answer to a chat: its text and usage, from a stream or from one document."""

from epp.demo.answer import Answer


def test_a_stream_is_read_event_by_event():
    answer = Answer()
    for line in (
        b'data: {"choices": [{"delta": {"content": "to"}}], "usage": null}',
        b'data: {"choices": [{"delta": {"content": "day"}}]}',
        b'data: {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}}}',
        b"data: [DONE]",
    ):
        answer.feed(line)
    assert (answer.text, answer.chunks) == ("today", 2)
    assert answer.first_at is not None
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens) == (9, 8)


def test_an_answer_without_usage_has_none():
    answer = Answer()
    answer.add(b'{"choices": [{"message": {"content": "today"}}]}')
    assert (answer.text, answer.usage.cached_tokens) == ("today", None)
