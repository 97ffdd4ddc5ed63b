"""Where the parts of a body that count are: its fields, those of a message, those of a part."""

from libc.string cimport memcmp

cdef enum:  # the fields of a body, a message, a part; of `sampling_params` and `features`
    _MODEL
    _STREAM
    _CACHE_SALT
    _MAX_TOKENS
    _MAX_COMPLETION_TOKENS
    _MAX_OUTPUT_TOKENS
    _N
    _PROMPT_LOGPROBS
    _ECHO
    _LOGPROBS
    _SAMPLING_PARAMS
    _FEATURES
    _PRIORITY
    _CHAT_TEMPLATE
    _CHAT_TEMPLATE_KWARGS
    _REASONING_EFFORT
    _TOOLS
    _SYSTEM
    _INSTRUCTIONS
    _DOCUMENTS
    _MESSAGES
    _PROMPT
    _INPUT
    _BODY_FIELDS
    _ROLE = 0
    _CONTENT
    _REASONING
    _REASONING_CONTENT
    _TOOL_CALLS
    _TOOL_CALL_ID
    _MESSAGE_FIELDS
    _TYPE = 0
    _PART_TEXT
    _SOURCE
    _THINKING
    _ID
    _NAME
    _TOOL_INPUT
    _TOOL_USE_ID
    _RESULT
    _PART_FIELDS
    _SAMPLED_MAX_TOKENS = 0
    _MAX_NEW_TOKENS
    _SAMPLED_N
    _SAMPLED_PROMPT_LOGPROBS
    _SKIP_READING_PREFIX_CACHE
    _MM_HASHES
    _MM_PLACEHOLDERS
    _INNER_FIELDS
    _NONE = -1

cdef enum:
    _LONGEST_KEY = 32
    _IN_BODY = 1  # depths of the keys that count
    _IN_FIELD = 2
    _IN_MESSAGE = 3
    _IN_PART = 5
    _IN_SOURCE = 8

_BODY_KEYS = (
    b"model", b"stream", b"cache_salt", b"max_tokens", b"max_completion_tokens",
    b"max_output_tokens", b"n", b"prompt_logprobs", b"echo", b"logprobs", b"sampling_params",
    b"features", b"priority", b"chat_template", b"chat_template_kwargs", b"reasoning_effort",
    b"tools", b"system", b"instructions", b"documents", b"messages", b"prompt", b"input",
)
_OTHER_NAMES = {
    "chat": {b"logprobs": b"top_logprobs"},
    "responses": {b"reasoning_effort": b"reasoning"},
    "conversations": {b"input": b"items"},
    "generate": {b"prompt": b"token_ids"},
    "messages": {b"chat_template": b"thinking", b"reasoning_effort": b"output_config"},
    "sglang/generate": {b"prompt": b"input_ids", b"input": b"text", b"cache_salt": b"extra_key"},
}
_SAMPLING_KEYS = (
    b"max_tokens", b"max_new_tokens", b"n", b"prompt_logprobs", b"skip_reading_prefix_cache",
)
_FEATURE_KEYS = (b"mm_hashes", b"mm_placeholders")
_MESSAGE_KEYS = (
    b"role", b"content", b"reasoning", b"reasoning_content", b"tool_calls", b"tool_call_id",
)
_PART_KEYS = (b"type", b"text", b"uuid")
_TEXT_PARTS = (b"text", b"input_text", b"output_text")
_BLOCK_KEYS = (
    b"type", b"text", b"source", b"thinking", b"id", b"name", b"input", b"tool_use_id", b"content",
)
_TEXT_BLOCKS = (b"text",)
_MEDIA_BLOCKS = (b"image", b"document", b"container_upload")

cdef int _ALWAYS = (1 << _SAMPLING_PARAMS) - 1 | 1 << _PRIORITY
cdef int _TEMPLATES = 1 << _CHAT_TEMPLATE | 1 << _CHAT_TEMPLATE_KWARGS | 1 << _REASONING_EFFORT
cdef dict _WANTED = {
    "chat": _ALWAYS | 1 << _MESSAGES | 1 << _TOOLS | 1 << _DOCUMENTS | _TEMPLATES,
    "completions": _ALWAYS | 1 << _PROMPT,
    "embeddings": _ALWAYS | 1 << _INPUT | 1 << _MESSAGES,
    "responses": (
        _ALWAYS | 1 << _INPUT | 1 << _INSTRUCTIONS | 1 << _TOOLS
        | 1 << _CHAT_TEMPLATE_KWARGS | 1 << _REASONING_EFFORT
    ),
    "conversations": _ALWAYS | 1 << _INPUT,
    "images": _ALWAYS | 1 << _PROMPT,
    "chat/render": _ALWAYS,  # an engine computes no prompt to render or to count one
    "completions/render": _ALWAYS,
    "messages/count_tokens": _ALWAYS,
    "messages": _ALWAYS | 1 << _MESSAGES | 1 << _TOOLS | 1 << _SYSTEM | _TEMPLATES,
    "generate": _ALWAYS | 1 << _PROMPT | 1 << _SAMPLING_PARAMS | 1 << _FEATURES,
    "sglang/generate": _ALWAYS | 1 << _PROMPT | 1 << _INPUT | 1 << _SAMPLING_PARAMS,
    "raw": _ALWAYS | 1 << _MESSAGES | 1 << _INPUT | 1 << _PROMPT | 1 << _INSTRUCTIONS | 1 << _TOOLS,
}
_ITEMS_ARE_MESSAGES = frozenset(("responses", "conversations", "raw"))


def _form(api, wanted):
    """Return all that is particular to an API, in one tuple: it is unpacked for every body."""
    names = _OTHER_NAMES.get(api, {})
    keys = tuple([names.get(key, key) for key in _BODY_KEYS])
    return wanted, keys, api in _ITEMS_ARE_MESSAGES, api == "messages"


cdef dict _FORMS = {api: _form(api, wanted) for api, wanted in _WANTED.items()}
cdef tuple _NO_FORM = _form("", 0)


cdef inline int _look_up(tuple keys, const char* key, int size) except -2:
    """Return the place of a key, or _NONE."""
    cdef int place
    cdef bytes each
    for place in range(len(keys)):
        each = <bytes>keys[place]
        if PyBytes_GET_SIZE(each) == size and memcmp(PyBytes_AS_STRING(each), key, size) == 0:
            return place
    return _NONE


cdef int _forget(Span* spans, int count) noexcept:
    cdef int field
    for field in range(count):
        spans[field].start = spans[field].end = -1
    return 0


cdef class FieldReader(JsonReader):
    """Knows which field is being read, and where those that were read lie."""

    cdef int _wanted
    cdef tuple _keys
    cdef bint _has_blocks  # parts are Anthropic's
    cdef bint _items_are_messages
    cdef bint _is_data  # the key under which a medium's bytes stand was read last
    cdef bint _declined  # what holds the prompts is written in odd ways
    cdef bint _skipping  # what is within the field of the prompts is read as JSON alone
    cdef bint _is_conversation  # items are messages: not prompts
    cdef bint _has_parts  # the message's content that is being read is a list
    cdef int _field, _message_field, _part_field, _inner_field
    cdef Span _body[_BODY_FIELDS]
    cdef Span _message[_MESSAGE_FIELDS]
    cdef Span _text_part[_PART_FIELDS]
    cdef Span _inner[_INNER_FIELDS]
    cdef char _string[_LONGEST_KEY]  # the string that is heeded
    cdef int _string_size

    def __cinit__(self, str api not None, Py_ssize_t longest, bint nameless=False):
        self._wanted, self._keys, self._items_are_messages, self._has_blocks = _FORMS.get(
            api, _NO_FORM
        )
        if not self._wanted:
            self.state = _BROKEN
        self._field = self._inner_field = _NONE
        _forget(self._body, _BODY_FIELDS)
        _forget(self._inner, _INNER_FIELDS)

    cdef int text(self, const uint8_t* data, Py_ssize_t size) except -1:
        if self._string_size + size <= _LONGEST_KEY:
            memcpy(self._string + self._string_size, data, size)
        self._string_size = <int>min(self._string_size + size, _LONGEST_KEY + 1)
        return 0

    cdef int named(self) except -1:
        cdef int size = self._string_size, field
        cdef tuple keys
        self._string_size = 0
        if self.depth == _IN_BODY:
            field = self._find(self._keys, size, self._body)
            self._field = field if field >= 0 and self._wanted >> field & 1 else _NONE
        elif self._skipping:
            return 0
        elif self.depth == _IN_MESSAGE and self._is_conversation and self._field >= _MESSAGES:
            self._message_field = self._find(_MESSAGE_KEYS, size, self._message)
        elif self.depth == _IN_PART and self._has_parts:
            keys = _BLOCK_KEYS if self._has_blocks else _PART_KEYS
            self._part_field = self._find(keys, size, self._text_part)
        elif self.depth == _IN_FIELD and self._field == _SAMPLING_PARAMS:
            self._inner_field = self._find(_SAMPLING_KEYS, size, self._inner)
        elif self.depth == _IN_FIELD and self._field == _FEATURES:
            field = self._find(_FEATURE_KEYS, size, self._inner + _MM_HASHES)
            self._inner_field = field if field == _NONE else field + _MM_HASHES
        elif self._has_blocks and self.depth == _IN_SOURCE and self._part_field == _RESULT:
            self._is_data = not self.escaped and size == 4 and memcmp(self._string, b"data", 4) == 0
        return 0

    cdef int _find(self, tuple keys, int size, Span* spans) except -2:
        """Return the place of the key that was read; decline one that comes twice."""
        cdef int place = _look_up(keys, self._string, size)
        if place >= 0 and spans[place].start >= 0:
            self._decline()
        return place

    cdef int _decline(self) noexcept:
        self._declined = self._skipping = True
        return 0

    cdef int _begin_string(self, _Kind kind) except -1:
        """Keep the string that begins; decline other values."""
        self.heeded, self._string_size = True, 0
        if kind != _TEXT:
            self._decline()
        return 0

    cdef int _end_string(self) except -1:
        """Return the length of the string; decline one that is long, or not plain ASCII."""
        cdef int place, size = self._string_size
        self._string_size = 0
        if self.escaped or size > _LONGEST_KEY:
            self._decline()
            return 0
        for place in range(size):
            if <uint8_t>self._string[place] >= 0x80:
                self._decline()
        return size
