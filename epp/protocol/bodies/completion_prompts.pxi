"""Prompts of completions and embeddings: texts, token ids, lists of either."""

cdef enum:  # `epp.protocol.bodies.request_json` says why
    _MAX_PROMPTS = 64
    _MAX_MESSAGES = 10_000


cdef class PromptReader(FieldReader):
    """Collects the content of the prompt's field, except messages."""

    cdef PromptWriter _writer
    cdef Py_ssize_t _longest
    cdef int _structured  # the field of the prompt, once it was met
    cdef int _whole_kind, _first_kind, _kind  # of all prompts, and of those in a list
    cdef Py_ssize_t _item, _tokens_at
    cdef int _items  # prompts or messages that were read to their end
    cdef bint _full  # no more of them are looked at

    def __cinit__(self, str api not None, Py_ssize_t longest, bint nameless=False):
        self._writer = PromptWriter()
        self._longest = longest
        self._structured = self._first_kind = _NONE
        self._item = -1

    cdef int _begin_prompts(self, _Kind kind) except -1:
        cdef bint texts_only = self._field != _MESSAGES and kind == _TEXT
        if self._structured != _NONE or not (kind == _ARRAY or texts_only):
            self._decline()
            return 0
        self._structured, self._whole_kind = self._field, kind
        self._is_conversation = self._field == _MESSAGES or (
            self._field == _INPUT and self._items_are_messages
        )
        return 0

    cdef int _end_prompts(self, int field, Py_ssize_t at) except -1:
        cdef Py_ssize_t start = self._body[field].start
        self._skipping = self._declined
        if self._declined:
            return 0
        if self._whole_kind == _TEXT and self._is_conversation:
            self._writer.add(_USER_ROLE)
            self._writer.add(_COPY, start, at)
        elif self._whole_kind == _TEXT:
            self._writer.add(_COPY, start, at - 1)
            self._writer.add(_PROMPT_END)
        elif self._first_kind == _NUMBER and not self._is_conversation:
            self._writer.add(_TOKENS, 0, self._writer.token_count)
            self._writer.add(_PROMPT_END)
        return 0

    cdef int _begin_prompt(self, _Kind kind, Py_ssize_t at) except -1:
        if self.depth > _IN_BODY + 1:
            if kind != _NUMBER:
                self._decline()
            return 0
        if self._first_kind == _NONE:
            self._first_kind = kind
        self._item, self._kind = at, kind
        if kind == _ARRAY:
            self._tokens_at = self._writer.token_count
        if kind > _NUMBER and kind != _ARRAY:
            self._decline()
        elif (kind == _NUMBER) != (self._first_kind == _NUMBER):
            self._decline()
        return 0

    cdef int _count_item(self, int most) noexcept:
        """Count a prompt or a message; skip those after the last that is read."""
        self._items += 1
        if self._items >= most:
            self._skipping = self._full = True
        return 0

    cdef int _end_prompt(self, Py_ssize_t at) except -1:
        if self.depth > _IN_BODY + 1 or self._kind == _NUMBER:
            if self.fractional:
                self._decline()
            else:
                self._token(self.whole)
            return 0
        if self._kind == _TEXT:
            self._writer.add(_COPY, self._item, at - 1)
            self._item = -1
        else:
            self._writer.add(_TOKENS, self._tokens_at, self._writer.token_count)
            self._tokens_at = self._writer.token_count
        self._writer.add(_PROMPT_END)
        return self._count_item(_MAX_PROMPTS)

    cdef int _token(self, uint64_t value) except -1:
        if value > _LARGEST:
            self._decline()
        elif self._writer.token_count * _TOKEN < self._longest:
            self._writer.token(<uint32_t>value)
        return 0

    cdef Py_ssize_t numbers(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Take token ids that a comma follows, up to the first thing that is not one."""
        cdef Py_ssize_t taken = 0, i = 0
        cdef uint64_t value
        if self._field < _MESSAGES or self._is_conversation or self._first_kind == _NONE:
            return 0
        if self._skipping:
            return 0
        if self.depth == _IN_BODY + 1 and self._first_kind != _NUMBER:
            return 0
        while i < size and _is_digit(data[i]) and not self._declined:
            value = data[i] - c"0"
            i += 1
            while i < size and _is_digit(data[i]) and value and value <= _LARGEST:
                value = value * 10 + (data[i] - c"0")
                i += 1
            if i == size or data[i] != c",":
                break
            self.state = _VALUE
            self._token(value)
            i += 1
            if i < size and data[i] == c" ":
                i += 1
            taken = i
        return taken
