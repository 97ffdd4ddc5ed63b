# cython: language_level=3, boundscheck=False, wraparound=False
"""Finds in a request's body what routing needs, as the body arrives.

The contract is `body_reader.py`. It notes where things are and copies nothing before the end. All
that is wrong is declined, and so is what is rare: a key that is written with escapes or comes
twice, token ids among texts.
"""

Prompts = list[tuple[bytes, bool, list[int]]]
Found = tuple[bytes, bytes, bytes, bytes, bytes, bytes, bytes, Prompts]

include "grammar.pxi"
include "draft.pxi"
include "outline.pxi"
include "prompts.pxi"

cdef class BodyReader(PromptReader):
    """One body of an API."""

    cdef Pieces _pieces
    cdef Draft _parts  # of the message's content
    cdef bint _content_is_list
    cdef bint _is_text  # the part is
    cdef Py_ssize_t _part

    def __cinit__(self, str api not None, Py_ssize_t longest):
        self._pieces = Pieces()

    @property
    def pieces(self):
        """What was fed, in order."""
        return self._pieces.pieces

    @property
    def model(self):
        """Where the model's name lies, quotes included: start and end, or None where it is not."""
        cdef Span span = self._body[_MODEL]
        return (span.start, span.end) if self.state == _DONE and span.start >= 0 else None

    def feed(self, bytes piece not None):
        """Take the next bytes."""
        if piece:
            self._pieces.pieces.append(piece)
            if self.state != _BROKEN:
                self.read(<const uint8_t*>PyBytes_AS_STRING(piece), PyBytes_GET_SIZE(piece))

    def finish(self):
        """Return what was found once all is fed; None leaves the body to be read at the end."""
        if self.state != _DONE or self._structured == _NONE or self._body[_MODEL].start < 0:
            return None
        draft = self._conversation() if self._is_conversation else self._draft
        if draft.count == 0:
            return None
        found = [self._pieces.cut(self._body[field]) for field in range(_TOOLS)]
        return *found, _written(draft, self._pieces, self._longest)

    cdef Draft _conversation(self):
        """Put what stands before all messages there."""
        cdef Draft draft = Draft()
        cdef int field
        if self._draft.count == 0:
            return draft
        for field in range(_TOOLS, _MESSAGES):
            if self._body[field].start >= 0:
                draft.add(_COPY, self._body[field].start, self._body[field].end)
        if draft.count and self._draft.steps[0].what != _USER_SAYS:
            draft.add(_MARK)
        draft.extend(self._draft)
        draft.add(_CUT)
        return draft

    # What the grammar tells.

    cdef int began(self, _Kind kind, Py_ssize_t at) except -1:
        if self._field == _NONE:
            return 0
        if self.depth == _IN_BODY:
            self._body[self._field].start = at
            if self._field >= _MESSAGES:
                self._begin_prompts(kind)
        elif self._field < _MESSAGES:
            return 0
        elif not self._is_conversation:
            self._begin_prompt(kind, at)
        elif self.depth == _IN_BODY + 1:
            self._begin_message(kind, at)
        elif self.depth == _IN_MESSAGE:
            self._begin_in_message(kind, at)
        elif self._has_parts:
            self._begin_in_parts(kind, at)
        return 0

    cdef int ended(self, Py_ssize_t at) except -1:
        cdef int field = self._field
        if field == _NONE:
            return 0
        if self.depth == _IN_BODY:
            self._body[field].end = at
            self._field = _NONE
            if field >= _MESSAGES:
                self._end_prompts(field, at)
        elif field < _MESSAGES:
            return 0
        elif not self._is_conversation:
            self._end_prompt(at)
        elif self.depth == _IN_BODY + 1:
            self._end_message(at)
        elif self.depth == _IN_MESSAGE:
            self._end_in_message(at)
        elif self._has_parts:
            self._end_in_parts(at)
        return 0

    # Messages.

    cdef int _begin_message(self, _Kind kind, Py_ssize_t at) except -1:
        self._item, self._content_is_list, self._message_field = at, False, _NONE
        _forget(self._message, _MESSAGE_FIELDS)
        if self._parts is None:
            self._parts = Draft()
        self._parts.count = 0
        if kind != _OBJECT:
            self.state = _BROKEN
        return 0

    cdef int _begin_in_message(self, _Kind kind, Py_ssize_t at) except -1:
        if self._message_field == _NONE:
            return 0
        self._message[self._message_field].start = at
        if self._message_field == _ROLE:
            self._begin_told(kind)
        elif self._message_field == _CONTENT:
            self._has_parts = self._content_is_list = kind == _ARRAY
        return 0

    cdef int _end_in_message(self, Py_ssize_t at) except -1:
        if self._message_field != _NONE:
            self._message[self._message_field].end = at
            if self._message_field == _ROLE:
                self._end_told()
        self._message_field, self._has_parts = _NONE, False
        return 0

    cdef int _end_message(self, Py_ssize_t at) except -1:
        cdef Span role = self._message[_ROLE]
        cdef int field
        if self._field == _INPUT and role.end - role.start <= 2:  # no message: as it stands
            self._draft.add(_COPY, self._item, at)
            self._draft.add(_MARK)
            return 0
        self._draft.add(_OPEN)
        if role.start >= 0:
            self._draft.add(_COPY, role.start + 1, role.end - 1)
        self._draft.add(_SHUT)
        for field in range(_CONTENT, _MESSAGE_FIELDS):
            if field == _CONTENT and self._content_is_list:
                self._draft.extend(self._parts)
            elif self._message[field].start >= 0:
                self._draft.add(_COPY, self._message[field].start, self._message[field].end)
        self._draft.add(_MARK)
        return 0

    cdef int _begin_in_parts(self, _Kind kind, Py_ssize_t at) except -1:
        if self.depth == _IN_MESSAGE + 1:
            self._part, self._is_text, self._part_field = at, True, _NONE
            _forget(self._text_part, _PART_FIELDS)
            if kind != _OBJECT:
                self.state = _BROKEN
        elif self.depth == _IN_PART and self._part_field != _NONE:
            self._text_part[self._part_field].start = at
            if self._part_field == _TYPE:
                self._begin_told(kind)
        return 0

    cdef int _end_in_parts(self, Py_ssize_t at) except -1:
        cdef Span words = self._text_part[_WORDS]
        if self.depth == _IN_PART:
            if self._part_field != _NONE:
                self._text_part[self._part_field].end = at
                if self._part_field == _TYPE:
                    self._is_text = _look_up(_TEXT_PARTS, self._told, self._end_told()) >= 0
            self._part_field = _NONE
        elif self.depth == _IN_MESSAGE + 1:
            if not self._is_text:
                self._parts.add(_MEDIUM, self._part, at)
            elif words.start >= 0:
                self._parts.add(_COPY, words.start, words.end)
        return 0
