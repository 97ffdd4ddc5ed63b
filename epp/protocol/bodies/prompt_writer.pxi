"""A prompt as a list of places in the body, until it is written in one go."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, strlen

from epp.protocol.bodies.body_data cimport size_of, start_of

from xxhash import xxh3_128

cdef struct Span:
    Py_ssize_t start
    Py_ssize_t end

cdef enum _Action:
    _COPY  # a span of the body
    _OPEN_ROLE  # what stands before a role
    _CLOSE_ROLE  # ... and behind it
    _USER_ROLE  # a user's role
    _MEDIUM  # a span of the body, by its digest
    _DIGEST  # ... and as few bytes as that has
    _MESSAGE_END  # a message ends
    _TOKENS  # a span of the token ids
    _PROMPT_END  # the prompt ends

cdef struct Step:
    _Action what
    Span span

cdef enum:
    _MEDIUM_BYTES = 900  # `epp.protocol.bodies.content_blocks` says why
    _DIGEST_BYTES = 16
    _TOKEN = 4
    _MAX_STEPS = 1 << 17  # 3 MiB: 10,000 messages of eight fields and 50,000 parts have fewer
    _SMALL_PIECE = 1 << 10
    _JOINED_PIECES = 64
    _JOINED_BYTES = 1 << 16


@cython.freelist(16)
cdef class PromptWriter:
    """Steps that write prompts, and the token ids that some of them write.

    `size` is what they write, in bytes. Beyond `_MAX_STEPS` only ends of prompts are added.
    `multimodal`: some write a medium.
    """

    cdef Step* steps
    cdef Py_ssize_t count
    cdef Py_ssize_t size
    cdef bint multimodal
    cdef Py_ssize_t _room
    cdef uint8_t* tokens  # little-endian
    cdef Py_ssize_t token_count
    cdef Py_ssize_t _token_room

    def __dealloc__(self):
        free(self.steps)
        free(self.tokens)

    cdef int add(self, _Action what, Py_ssize_t start=0, Py_ssize_t end=0) except -1:
        cdef Step* grown
        if self.count >= _MAX_STEPS and what != _PROMPT_END:
            return 0
        if self.count == self._room:
            self._room = 2 * self._room + 32
            grown = <Step*>realloc(self.steps, self._room * sizeof(Step))
            if grown == NULL:
                raise MemoryError
            self.steps = grown
        self.steps[self.count].what = what
        self.steps[self.count].span.start = start
        self.steps[self.count].span.end = end
        self.size += _bytes_of(self.steps[self.count])
        self.multimodal |= what == _MEDIUM
        self.count += 1
        return 0

    cdef int clear(self) noexcept:
        self.count = self.size = self.multimodal = 0
        return 0

    cdef int extend(self, PromptWriter other) except -1:
        cdef Py_ssize_t place
        for place in range(other.count):
            self.add(
                other.steps[place].what, other.steps[place].span.start, other.steps[place].span.end
            )
        return 0

    cdef int token(self, uint32_t value) except -1:
        cdef uint8_t* grown
        cdef uint8_t* into
        if self.token_count == self._token_room:
            self._token_room = 2 * self._token_room + 256
            grown = <uint8_t*>realloc(self.tokens, self._token_room * _TOKEN)
            if grown == NULL:
                raise MemoryError
            self.tokens = grown
        into = self.tokens + self.token_count * _TOKEN
        into[0], into[1] = <uint8_t>value, <uint8_t>(value >> 8)
        into[2], into[3] = <uint8_t>(value >> 16), <uint8_t>(value >> 24)
        self.token_count += 1
        return 0


cpdef int add_piece(list pieces, piece) except -1:
    """Add a piece to a body; join many small ones, as each takes 40 bytes more than its own."""
    cdef Py_ssize_t count
    pieces.append(piece)
    count = len(pieces)
    if len(piece) < _SMALL_PIECE and count % _JOINED_PIECES == 0:
        last = pieces[count - _JOINED_PIECES :]
        if sum(map(len, last)) <= _JOINED_BYTES:
            pieces[count - _JOINED_PIECES :] = [b"".join(last)]
    return 0


@cython.freelist(16)
cdef class Pieces:
    """A body as it came, addressed by offsets from its start."""

    cdef readonly list pieces
    cdef Py_ssize_t size
    cdef Py_ssize_t _piece  # the one that was read last, and its offset
    cdef Py_ssize_t _start

    def __cinit__(self):
        self.pieces = []

    cdef int add(self, piece) except -1:
        cdef Py_ssize_t count = len(self.pieces)
        add_piece(self.pieces, piece)
        if len(self.pieces) <= count:  # some were joined
            self._piece = self._start = 0
        return 0

    cdef object _seek(self, Py_ssize_t at):
        """Go to the piece that holds an offset."""
        piece = self.pieces[self._piece]
        while at < self._start:
            self._piece -= 1
            piece = self.pieces[self._piece]
            self._start -= size_of(piece)
        while at >= self._start + size_of(piece):
            self._start += size_of(piece)
            self._piece += 1
            piece = self.pieces[self._piece]
        return piece

    cdef int copy(self, Span span, char* into) except -1:
        cdef Py_ssize_t part, at = span.start
        while at < span.end:
            piece = self._seek(at)
            part = min(span.end, self._start + size_of(piece)) - at
            memcpy(into, start_of(piece) + (at - self._start), part)
            into += part
            at += part
        return 0

    cdef bytes cut(self, Span span, Py_ssize_t most):
        """Copy a span, but of more than `most` bytes one more; an unset or open one is empty."""
        cdef bytes made
        if span.start < 0 or span.end < 0:
            return b""
        span.end = min(span.end, span.start + most + 1)
        made = PyBytes_FromStringAndSize(NULL, span.end - span.start)
        self.copy(span, PyBytes_AS_STRING(made))
        return made

    cdef bytes digest(self, Span span):
        cdef Py_ssize_t part, at = span.start
        hasher = xxh3_128()
        while at < span.end:
            piece = self._seek(at)
            part = min(span.end, self._start + size_of(piece)) - at
            hasher.update(memoryview(piece)[at - self._start : at - self._start + part])
            at += part
        return hasher.digest()


cdef const char* _literal(_Action what) noexcept:
    if what == _OPEN_ROLE:
        return b"\n<"
    if what == _CLOSE_ROLE:
        return b">"
    return b"\n<user>" if what == _USER_ROLE else b""


cdef Py_ssize_t _bytes_of(Step step) noexcept:
    cdef Py_ssize_t length = step.span.end - step.span.start
    if step.what == _COPY:
        return length
    if step.what == _TOKENS:
        return length * _TOKEN
    if step.what == _DIGEST:
        return _DIGEST_BYTES
    return _MEDIUM_BYTES if step.what == _MEDIUM else <Py_ssize_t>strlen(_literal(step.what))


cdef list _written(PromptWriter writer, Pieces body, Py_ssize_t longest):
    """Write all prompts: a list of (data, exact, marks), `longest` bytes at most in all."""
    cdef Py_ssize_t first = 0, place
    cdef tuple prompt
    prompts = []
    for place in range(writer.count):
        if writer.steps[place].what == _PROMPT_END:
            prompt = _prompt(writer, first, place, body, longest)
            longest -= PyBytes_GET_SIZE(<bytes>prompt[0])
            prompts.append(prompt)
            first = place + 1
    return prompts


cdef tuple _prompt(
    PromptWriter writer, Py_ssize_t first, Py_ssize_t last, Pieces body, Py_ssize_t longest
):
    cdef Py_ssize_t size = 0, place
    cdef bint exact = False
    cdef bytes data
    marks = []
    for place in range(first, last):
        size += _bytes_of(writer.steps[place])
        if writer.steps[place].what == _MESSAGE_END and size <= longest:
            marks.append(size)
        exact = exact or writer.steps[place].what == _TOKENS
    data = PyBytes_FromStringAndSize(NULL, min(size, longest))
    _write(writer, first, last, body, data)
    return data, exact, marks


cdef int _write(
    PromptWriter writer, Py_ssize_t first, Py_ssize_t last, Pieces body, bytes data
) except -1:
    """Fill `data` with the bytes of the steps, as far as it has room."""
    cdef char* into = PyBytes_AS_STRING(data)
    cdef Py_ssize_t left = PyBytes_GET_SIZE(data), place, part
    cdef Step step
    cdef bytes digest
    for place in range(first, last):
        step = writer.steps[place]
        part = min(_bytes_of(step), left)
        if part == 0:
            continue
        if step.what == _COPY:
            step.span.end = step.span.start + part
            body.copy(step.span, into)
        elif step.what == _TOKENS:
            memcpy(into, writer.tokens + step.span.start * _TOKEN, part)
        elif step.what == _MEDIUM or step.what == _DIGEST:
            digest = body.digest(step.span)
            digest = digest * (part // _DIGEST_BYTES + 1)
            memcpy(into, PyBytes_AS_STRING(digest), part)
        else:
            memcpy(into, _literal(step.what), part)
        into += part
        left -= part
    return 0
