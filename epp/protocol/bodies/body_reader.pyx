# cython: language_level=3, boundscheck=False, wraparound=False
"""Finds in a request's body what routing needs, as the body arrives.

The contract is `body_reader.py`. It notes where things are and copies nothing before the end. All
that is wrong is declined, and so is what is rare: a key that comes twice, a role or a type that is
written with escapes, token ids among texts.

Four classes, each derived from the one before it; `JsonReader` calls the others for each value:

    json.pxi                  JsonReader     is this JSON, and where does each value begin and end
    fields.pxi                FieldReader    which field of the body, a message or a part is that
    completion_prompts.pxi    PromptReader   prompts that are texts or token ids
    body_reader.pyx           BodyReader     messages and their parts, and what Python calls

What they find, `prompt_writer.pxi` keeps as a list of steps, and writes as prompts at the end.
"""

BodyData = bytes | memoryview
Prompts = list[tuple[bytes, bool, list[int]]]
Found = tuple[
    bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes,
    tuple[bytes, ...], Prompts
]

cimport cython

from epp.protocol.bodies.body_data cimport is_body_data
from epp.protocol.bodies.coercion import LONGEST_VALUE
from epp.protocol.bodies.content_blocks import BILLING_BYTES, NO_THINKING, billing_span
from epp.protocol.bodies.json_tokens import member_span
from epp.protocol.bodies.token_prompts import LONGEST_FEATURE

include "json.pxi"
include "prompt_writer.pxi"
include "fields.pxi"
include "completion_prompts.pxi"

cdef enum:
    _TURN_BYTES = 1 << 20  # at 12 ns a byte, of bodies that are made for it

cdef tuple _NOTHING = (b"null", b"[]", b"{}")
cdef Py_ssize_t _LONGEST_VALUE = LONGEST_VALUE
cdef Py_ssize_t _LONGEST_FEATURE = LONGEST_FEATURE


cdef class BodyReader(PromptReader):
    """One body of an API; `body_reader.py` says what its methods do."""

    cdef Pieces _pieces
    cdef readonly Py_ssize_t unread
    cdef Py_ssize_t _next, _offset  # the piece that is read next, and where in it
    cdef bint _nameless
    cdef PromptWriter _parts  # of the message's content
    cdef bint _content_is_list
    cdef bint _is_text  # the part is
    cdef bint _is_block  # ... or else one that is no medium
    cdef Py_ssize_t _part
    cdef PromptWriter _media  # within the part
    cdef Py_ssize_t _datum, _written_to  # the one that is being read; the end of the last

    def __cinit__(self, str api not None, Py_ssize_t longest, bint nameless=False):
        self._pieces = Pieces()
        self._nameless = nameless
        self._datum = -1

    @property
    def pieces(self):
        return self._pieces.pieces

    @property
    def places(self):
        cdef Span model = self._body[_MODEL], priority = self._body[_PRIORITY]
        if self.state != _DONE:
            return None
        return (model.start, model.end), (priority.start, priority.end)

    @property
    def multimodal(self):
        return self._writer.multimodal

    def feed(self, piece):
        cdef Py_ssize_t size
        if not is_body_data(piece):
            raise TypeError("neither bytes nor a view of bytes")
        size = size_of(piece)
        if self.unread or size > _TURN_BYTES:
            if not self.unread:
                self._next, self._offset = len(self._pieces.pieces), 0
            self._pieces.pieces.append(piece)
            if self.state != _BROKEN:
                self.unread += size
        elif size:
            self._pieces.add(piece)
            if self.state != _BROKEN:
                self.read(start_of(piece), size)

    def read_on(self):
        cdef Py_ssize_t left = _TURN_BYTES, part
        while left and self.unread and self.state != _BROKEN:
            piece = self._pieces.pieces[self._next]
            part = min(size_of(piece) - self._offset, left)
            self.read(start_of(piece) + self._offset, part)
            self._offset += part
            left -= part
            self.unread -= part
            if self._offset == size_of(piece):
                self._next, self._offset = self._next + 1, 0
        if self.state == _BROKEN:
            self.unread = 0

    @property
    def enough(self):
        if self.state == _BROKEN or self._declined or self._structured == _NONE:
            return False
        if self._body[_MODEL].end < 0 and not self._nameless:
            return False
        return self._full or self._writer.size + self._size_within() >= self._longest

    def finish(self, bint whole=True):
        if self._declined or (self._structured == _NONE and self._wanted != _ALWAYS):
            return None
        if self._wanted == _ALWAYS:
            return self.outline() if self._is_object() else None
        if self.state != _DONE and (whole or not self.enough):
            return None
        if self._field == self._structured and not self._skipping:
            self._end_within()
        writer = self._conversation() if self._is_conversation else self._writer
        if writer.count == 0:
            return None
        return *self._fields(), _written(writer, self._pieces, self._longest)

    @property
    def broken_at(self):
        return -1 if self.state == _DONE else self.at

    def outline(self):
        return (*self._fields(), []) if self.state == _DONE else None

    cdef bint _is_object(self) except -1:
        """Whether the body is an object, if it is JSON."""
        for piece in self._pieces.pieces:
            begun = bytes(piece).lstrip(b" \t\r\n")
            if begun:
                return begun[:1] == b"{"
        return False

    cdef list _fields(self):
        cdef int field
        cdef list found = []
        for field in range(_PROMPT_LOGPROBS):
            found.append(self._pieces.cut(self._body[field], _LONGEST_VALUE))
        for field in range(_SAMPLED_PROMPT_LOGPROBS):
            found.append(self._pieces.cut(self._inner[field], _LONGEST_VALUE))
        for field in range(_MM_HASHES, _INNER_FIELDS):
            found.append(self._pieces.cut(self._inner[field], _LONGEST_FEATURE))
        found.append(self._logprobs())
        return found

    cdef tuple _logprobs(self):
        """Return what says whether the cache is read; nothing if the body does not."""
        cdef Span* body = self._body
        cdef Span* inner = self._inner
        if (
            body[_PROMPT_LOGPROBS].end < 0 and body[_ECHO].end < 0
            and inner[_SAMPLED_PROMPT_LOGPROBS].end < 0
            and inner[_SKIP_READING_PREFIX_CACHE].end < 0
        ):
            return ()
        return (
            self._pieces.cut(body[_PROMPT_LOGPROBS], _LONGEST_VALUE),
            self._pieces.cut(body[_ECHO], _LONGEST_VALUE),
            self._pieces.cut(body[_LOGPROBS], _LONGEST_VALUE),
            self._pieces.cut(inner[_SAMPLED_PROMPT_LOGPROBS], _LONGEST_VALUE),
            self._pieces.cut(inner[_SKIP_READING_PREFIX_CACHE], _LONGEST_VALUE),
        )

    cdef Py_ssize_t _size_within(self) noexcept:
        """Count the bytes of the prompt that is being read."""
        cdef Py_ssize_t start = self.at
        if self._field != self._structured:
            return 0
        if self._is_conversation and self._whole_kind != _TEXT and self._message[_ROLE].end < 0:
            return 0
        if self._whole_kind == _TEXT:
            start = self._body[self._field].start
        elif not self._is_conversation:
            if self._kind != _TEXT:
                return (self._writer.token_count - self._tokens_at) * _TOKEN
            start = self._item
        elif self._has_parts:
            if self._is_within_text():
                start = self._text_part[_PART_TEXT].start
            return self._parts.size + self.at - start
        elif self._message_field == _CONTENT:
            start = self._message[_CONTENT].start
        return self.at - start if start >= 0 else 0

    cdef bint _is_within_text(self) noexcept:
        """Say whether the text of a part of a message is being read."""
        cdef bint begun = self._part_field == _PART_TEXT and self._text_part[_PART_TEXT].start >= 0
        return self._has_parts and self._is_text and begun

    cdef int _end_within(self) except -1:
        """End the prompt that is being read at the last byte that arrived."""
        cdef int field
        if not self._is_conversation:
            if self._whole_kind == _TEXT:
                self._writer.add(_COPY, self._body[self._field].start, self.at)
            elif self._kind == _TEXT:
                if self._item < 0:
                    return 0
                self._writer.add(_COPY, self._item, self.at)
            elif self._kind == _ARRAY and self.depth == _IN_BODY + 1:
                return 0
            else:
                self._writer.add(_TOKENS, self._tokens_at, self._writer.token_count)
            self._writer.add(_PROMPT_END)
        elif self._whole_kind == _TEXT:
            self._writer.add(_USER_ROLE)
            self._writer.add(_COPY, self._body[self._field].start, self.at)
        elif self.depth >= _IN_MESSAGE:
            if self._is_within_text():
                self._parts.add(_COPY, self._text_part[_PART_TEXT].start, self.at)
            if self._message_field == _ROLE:
                self._message[_ROLE].start = -1
            for field in range(_MESSAGE_FIELDS):
                if self._message[field].start >= 0 and self._message[field].end < 0:
                    self._message[field].end = self.at
            self._end_message(self.at)
        return 0

    cdef PromptWriter _conversation(self):
        """Put what stands before all messages there."""
        cdef PromptWriter writer = PromptWriter()
        cdef int field
        if self._writer.count == 0:
            return writer
        self._digest_template(writer)
        for field in range(_TOOLS, _MESSAGES):
            if self._is_given(self._body[field]):
                self._copy_head(writer, self._body[field])
        if writer.size and self._writer.steps[0].what != _USER_ROLE:
            writer.add(_MESSAGE_END)
        writer.extend(self._writer)
        writer.add(_PROMPT_END)
        return writer

    cdef int _digest_template(self, PromptWriter writer) except -1:
        """Digest what says how the prompt is written, but not in its own words."""
        cdef Span template = self._body[_CHAT_TEMPLATE], effort = self._body[_REASONING_EFFORT]
        if self._has_blocks:  # they are `thinking` and `output_config`
            template = self._member(template, b"type")
            if self._pieces.cut(template, _LONGEST_VALUE) == NO_THINKING:
                effort.end = -1
            else:
                template.end = -1
        if self._has_blocks or self._items_are_messages:
            effort = self._member(effort, b"effort")
        self._digest(writer, template)
        self._digest(writer, self._body[_CHAT_TEMPLATE_KWARGS])
        self._digest(writer, effort)
        return 0

    cdef int _digest(self, PromptWriter writer, Span field) except -1:
        if self._is_given(field):
            writer.add(_DIGEST, field.start, field.end)
        return 0

    cdef bint _is_given(self, Span field) except -1:
        """Say whether the body has a field, and something in it."""
        if field.end - field.start > 4:
            return True
        return field.end >= 0 and self._pieces.cut(field, 4) not in _NOTHING

    cdef Span _member(self, Span field, bytes key) except *:
        """Return the position of a key's value in a field that is an object."""
        cdef Span within
        within.start = within.end = -1
        if field.end >= 0:
            found = member_span(self._pieces.cut(field, _LONGEST_VALUE), key)
            if found is not None:
                within.start = field.start + <Py_ssize_t>found[0]
                within.end = field.start + <Py_ssize_t>found[1]
        return within

    cdef int _copy_head(self, PromptWriter writer, Span field) except -1:
        """Copy what stands before all messages, except a client's attribution."""
        if field.start in (self._body[_SYSTEM].start, self._body[_INSTRUCTIONS].start):
            found = billing_span(self._pieces.cut(field, <Py_ssize_t>BILLING_BYTES))
            if found is not None:
                writer.add(_COPY, field.start, field.start + <Py_ssize_t>found[0])
                field.start += <Py_ssize_t>found[1]
        writer.add(_COPY, field.start, field.end)
        return 0

    # What the JSON reader calls.

    cdef int began(self, _Kind kind, Py_ssize_t at) except -1:
        if self._field == _NONE:
            return 0
        if self.depth == _IN_BODY:
            self._body[self._field].start, self._body[self._field].end = at, -1
            if self._field >= _MESSAGES and not self._declined:
                self._begin_prompts(kind)
        elif self._field < _MESSAGES:
            if self._inner_field != _NONE and self.depth == _IN_FIELD:
                self._inner[self._inner_field].start = at
        elif self._skipping:
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
            if self._inner_field != _NONE and self.depth == _IN_FIELD:
                self._inner[self._inner_field].end = at
                self._inner_field = _NONE
        elif self._skipping:
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
            self._parts = PromptWriter()
        self._parts.clear()
        if kind != _OBJECT:
            self._decline()
        return 0

    cdef int _begin_in_message(self, _Kind kind, Py_ssize_t at) except -1:
        if self._message_field == _NONE:
            return 0
        self._message[self._message_field].start = at
        if self._message_field == _ROLE:
            self._begin_string(kind)
        elif self._message_field == _CONTENT:
            self._has_parts = self._content_is_list = kind == _ARRAY
        return 0

    cdef int _end_in_message(self, Py_ssize_t at) except -1:
        if self._message_field != _NONE:
            self._message[self._message_field].end = at
            if self._message_field == _ROLE:
                self._end_string()
        self._message_field, self._has_parts = _NONE, False
        return 0

    cdef int _end_message(self, Py_ssize_t at) except -1:
        cdef Span role = self._message[_ROLE]
        cdef int field
        cdef Step* first
        self._count_item(_MAX_MESSAGES)
        if self._field == _INPUT and role.end - role.start <= 2:  # no message: as it stands
            self._writer.add(_COPY, self._item, at)
            self._writer.add(_MESSAGE_END)
            return 0
        self._writer.add(_OPEN_ROLE)
        if role.start >= 0:
            self._writer.add(_COPY, role.start + 1, role.end - 1)
        self._writer.add(_CLOSE_ROLE)
        if role.end - role.start == 8 and self._pieces.cut(role, 8) == b'"system"':
            first = self._parts.steps
            if not self._content_is_list:
                self._message[_CONTENT] = self._unattributed(self._message[_CONTENT])
            elif self._parts.count > 0 and first.what == _COPY:
                first.span = self._unattributed(first.span)
        for field in range(_CONTENT, _MESSAGE_FIELDS):
            if field == _CONTENT and self._content_is_list:
                self._writer.extend(self._parts)
            elif field == _REASONING_CONTENT and self._message[_REASONING].start >= 0:
                continue
            elif self._message[field].start >= 0:
                self._writer.add(_COPY, self._message[field].start, self._message[field].end)
        self._writer.add(_MESSAGE_END)
        return 0

    cdef Span _unattributed(self, Span words) except *:
        """Return the position of a system prompt behind a client's attribution."""
        if self._pieces.cut(words, 2) == b'"x-':
            found = billing_span(self._pieces.cut(words, <Py_ssize_t>BILLING_BYTES))
            if found is not None:
                words.start += <Py_ssize_t>found[1]
        return words

    cdef int _begin_in_parts(self, _Kind kind, Py_ssize_t at) except -1:
        if self.depth == _IN_MESSAGE + 1:
            self._part, self._is_text, self._part_field = at, True, _NONE
            self._is_block = False
            _forget(self._text_part, _PART_FIELDS if self._has_blocks else _THINKING)
            if self._has_blocks:
                self._begin_block()
            if kind == _TEXT:
                self._part_field = _PART_TEXT
                self._text_part[_PART_TEXT].start = at
            elif kind != _OBJECT:
                self._decline()
        elif self.depth == _IN_PART and self._part_field != _NONE:
            self._text_part[self._part_field].start = at
            if self._part_field == _TYPE:
                self._begin_string(kind)
            elif self._part_field == _RESULT:
                self._written_to = at
        elif self._is_data and self.depth == _IN_SOURCE and kind == _TEXT:
            self._datum = at
        self._is_data = False
        return 0

    cdef int _begin_block(self) except -1:
        if self._media is None:
            self._media = PromptWriter()
        self._media.clear()
        self._datum = -1
        return 0

    cdef int _end_in_parts(self, Py_ssize_t at) except -1:
        cdef Span words = self._text_part[_PART_TEXT]
        cdef int size
        cdef tuple texts
        if self.depth == _IN_PART:
            if self._part_field != _NONE:
                self._text_part[self._part_field].end = at
                if self._part_field == _TYPE:
                    size = self._end_string()
                    texts = _TEXT_BLOCKS if self._has_blocks else _TEXT_PARTS
                    self._is_text = _look_up(texts, self._string, size) >= 0
                    self._is_block = (
                        self._has_blocks and _look_up(_MEDIA_BLOCKS, self._string, size) < 0
                    )
            self._part_field = _NONE
        elif self.depth == _IN_MESSAGE + 1:
            if self._part_field == _PART_TEXT:  # the part is a text
                words.end = at
                self._part_field = _NONE
            if self._is_text:
                if words.start >= 0:
                    self._parts.add(_COPY, words.start, words.end)
            elif self._is_block:
                self._copy_block()
            elif self._is_given(self._text_part[_SOURCE]):
                words = self._text_part[_SOURCE]
                self._parts.add(_MEDIUM, words.start, words.end)
            else:
                self._parts.add(_MEDIUM, self._part, at)
        elif self._datum >= 0 and self.depth == _IN_SOURCE:
            self._media.add(_COPY, self._written_to, self._datum)
            self._media.add(_MEDIUM, self._datum, at)
            self._datum, self._written_to = -1, at
        return 0

    cdef int _copy_block(self) except -1:
        """Copy what an engine reads of a block; the media in it stand as their digests."""
        cdef int field
        cdef Span result = self._text_part[_RESULT]
        for field in range(_THINKING, _RESULT):
            if self._text_part[field].start >= 0:
                self._parts.add(_COPY, self._text_part[field].start, self._text_part[field].end)
        if result.start >= 0:
            self._parts.extend(self._media)
            self._parts.add(_COPY, self._written_to, result.end)
        return 0
