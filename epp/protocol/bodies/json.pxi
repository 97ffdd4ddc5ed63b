"""JSON's grammar, read as the bytes arrive and split anywhere; nothing is built.

It takes what msgspec takes, except what nests deeper than `_DEPTH`.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef extern from "plain.h":
    size_t _plain "warmpick_plain"(const uint8_t*, size_t, bint) nogil
    bint _is_simple "warmpick_is_simple_escape"(uint8_t) nogil
    bint _is_space "warmpick_is_space"(uint8_t) nogil
    bint _is_digit "warmpick_is_digit"(uint8_t) nogil
    int _hex "warmpick_hex"(uint8_t) nogil

cdef enum _Kind:
    _TEXT
    _NUMBER
    _WORD
    _OBJECT
    _ARRAY

cdef enum _State:
    _VALUE  # must come
    _ELEMENT  # a value, or the end of an array without any
    _KEY  # must come
    _MEMBER  # a key, or the end of an object without any
    _COLON  # must come
    _AFTER  # a value: a comma, or the end of what holds it
    _STRING
    _ESCAPE  # what follows a backslash
    _HEX  # `_left` digits of an escape
    _PAIR  # the backslash of a low surrogate
    _PAIR_U  # ... and its letter
    _SPELT  # the rest of a word
    _MINUS
    _ZERO
    _DIGITS
    _POINT
    _FRACTION
    _E
    _E_SIGN
    _EXPONENT
    _DONE  # nothing but white space may come
    _BROKEN

cdef enum:
    _DEPTH = 200
    _OTHER = 0x80  # no byte of ASCII
cdef uint64_t _LARGEST = (1 << 32) - 1  # of token ids


cdef class JsonReader:
    """Reads one value, and calls the derived class's methods with where values and keys are.

    `depth` is the number of objects and arrays that are open, `at` the number of bytes read
    before those that are being read. `whole` is a number's value, or `fractional` says that it is
    none without a sign, a fraction and an exponent; it stops growing beyond 32 bits. If the
    bytes make no JSON, `at` stays at the one that does not fit.
    """

    cdef _State state
    cdef int depth
    cdef Py_ssize_t at
    cdef uint64_t whole
    cdef bint fractional
    cdef bint heeded  # the string is passed to `text`, and `escaped` is set for it
    cdef bint escaped
    cdef bint _names  # the string is a key
    cdef bint _high  # the escape was half of a pair
    cdef int _left
    cdef uint32_t _unit
    cdef const char* _word
    cdef uint8_t _in_object[_DEPTH + 1]

    cdef int began(self, _Kind kind, Py_ssize_t at) except -1:
        """Called when a value begins at an offset; `depth` is that of the container."""
        return 0

    cdef int ended(self, Py_ssize_t at) except -1:
        """Called when a value has ended before an offset; `depth` is that of the container."""
        return 0

    cdef int text(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Called with a part of a heeded string, without quotes and escapes. Keys are always heeded.

        A key's escapes of ASCII come as the characters that they stand for, others as `_OTHER`.
        """
        return 0

    cdef int named(self) except -1:
        """Called when a key is complete."""
        return 0

    cdef Py_ssize_t numbers(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Take as many bytes as possible at the beginning of a value; return their number."""
        return 0

    cdef int read(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Take the next bytes."""
        cdef Py_ssize_t i = 0, run
        cdef uint8_t byte
        while i < size:
            if self.state == _STRING:
                i += self._run(data + i, size - i)
                if i == size:
                    break
            byte = data[i]
            if self.state <= _AFTER:
                if _is_space(byte):
                    i += 1
                    continue
                if self.state <= _ELEMENT and _is_digit(byte):
                    run = self.numbers(data + i, size - i)
                    if run:
                        i += run
                        continue
                self._between(byte, self.at + i)
            elif self.state <= _PAIR_U:
                self._within(byte, self.at + i)
            elif self.state == _SPELT:
                self._spell(byte, self.at + i)
            elif self.state <= _EXPONENT:
                if not self._count(byte):
                    self._end(self.at + i)
                    continue  # the byte comes after the number
            elif not _is_space(byte):
                self.state = _BROKEN
            if self.state == _BROKEN:
                self.at += i
                return 0
            i += 1
        self.at += size
        return 0

    cdef Py_ssize_t _run(self, const uint8_t* data, Py_ssize_t size) except -1:
        """Take plain bytes, and simple escapes among them; return their number."""
        cdef Py_ssize_t run = _plain(data, size, not self.heeded)
        if self.heeded and run:
            self.text(data, run)
        return run

    cdef int _between(self, uint8_t byte, Py_ssize_t at) except -1:
        """Take a byte outside of strings, words and numbers."""
        if self.state <= _ELEMENT:
            if byte == c"]" and self.state == _ELEMENT:
                self._close(at)
            else:
                self._start(byte, at)
        elif self.state == _COLON:
            self.state = _VALUE if byte == c":" else _BROKEN
        elif self.state == _AFTER:
            if byte == c",":
                self.state = _KEY if self._in_object[self.depth] else _VALUE
            elif byte == (c"}" if self._in_object[self.depth] else c"]"):
                self._close(at)
            else:
                self.state = _BROKEN
        elif byte == c'"':
            self._names = self.heeded = True
            self.escaped, self.state = False, _STRING
        elif byte == c"}" and self.state == _MEMBER:
            self._close(at)
        else:
            self.state = _BROKEN
        return 0

    cdef int _start(self, uint8_t byte, Py_ssize_t at) except -1:
        """Begin a value."""
        if byte == c'"':
            self._names = self.heeded = self.escaped = False
            self.state = _STRING
            self.began(_TEXT, at)
        elif byte == c"{" or byte == c"[":
            if self.depth == _DEPTH:
                self.state = _BROKEN
                return 0
            self.state = _MEMBER if byte == c"{" else _ELEMENT
            self.began(_OBJECT if byte == c"{" else _ARRAY, at)
            self.depth += 1
            self._in_object[self.depth] = byte == c"{"
        elif byte == c"-" or _is_digit(byte):
            self.fractional = byte == c"-"
            self.whole = 0 if self.fractional else byte - c"0"
            self.state = _MINUS if byte == c"-" else _ZERO if byte == c"0" else _DIGITS
            self.began(_NUMBER, at)
        else:
            self._begin_word(byte, at)
        return 0

    cdef int _begin_word(self, uint8_t byte, Py_ssize_t at) except -1:
        if byte == c"t":
            self._word = b"rue"
        elif byte == c"f":
            self._word = b"alse"
        elif byte == c"n":
            self._word = b"ull"
        else:
            self.state = _BROKEN
            return 0
        self.state = _SPELT
        self.began(_WORD, at)
        return 0

    cdef int _spell(self, uint8_t byte, Py_ssize_t at) except -1:
        """Take the next letter of a word."""
        if byte != <uint8_t>self._word[0]:
            self.state = _BROKEN
            return 0
        self._word += 1
        if self._word[0] == 0:
            self._end(at + 1)
        return 0

    cdef int _close(self, Py_ssize_t at) except -1:
        """End an object or an array."""
        self.depth -= 1
        self._end(at + 1)
        return 0

    cdef int _end(self, Py_ssize_t at) except -1:
        """End a value."""
        self.state = _AFTER if self.depth else _DONE
        self.ended(at)
        return 0

    cdef int _within(self, uint8_t byte, Py_ssize_t at) except -1:
        """Take a byte of a string that is not plain, or part of an escape."""
        cdef int digit
        if self.state == _STRING:
            if byte == c"\\":
                self.escaped, self.state = True, _ESCAPE
            elif byte != c'"':
                self.state = _BROKEN
            elif self._names:
                self.state = _COLON
                self.named()
            else:
                self._end(at + 1)
        elif self.state == _ESCAPE:
            if byte == c"u":
                self._high, self._left, self._unit, self.state = False, 4, 0, _HEX
            else:
                self.state = _STRING if _is_simple(byte) else _BROKEN
                self._spell_key(_OTHER)
        elif self.state == _HEX:
            digit = _hex(byte)
            if digit < 0:
                self.state = _BROKEN
                return 0
            self._unit = self._unit << 4 | <uint32_t>digit
            self._left -= 1
            if self._left == 0:
                self._complete()
        elif self.state == _PAIR:
            self.state = _PAIR_U if byte == c"\\" else _BROKEN
        elif byte == c"u":
            self._high, self._left, self._unit, self.state = True, 4, 0, _HEX
        else:
            self.state = _BROKEN
        return 0

    cdef int _complete(self) except -1:
        """Hold surrogates to coming in pairs."""
        cdef bint low = 0xDC00 <= self._unit <= 0xDFFF
        if self._high:
            self.state = _STRING if low else _BROKEN
            self._spell_key(_OTHER)
        elif 0xD800 <= self._unit <= 0xDBFF:
            self.state = _PAIR
        else:
            self.state = _BROKEN if low else _STRING
            self._spell_key(self._unit)
        return 0

    cdef int _spell_key(self, uint32_t unit) except -1:
        """Pass on the character that an escape in a key stands for."""
        cdef uint8_t byte = <uint8_t>min(unit, <uint32_t>_OTHER)
        if self._names:
            self.text(&byte, 1)
        return 0

    cdef bint _count(self, uint8_t byte) except -1:
        """Take a byte of a number; return whether it was one. One that may not end here breaks."""
        cdef bint point = byte == c".", power = byte == c"e" or byte == c"E"
        cdef _State state = self.state
        if _is_digit(byte) and state != _ZERO:
            if state == _MINUS:
                self.state = _ZERO if byte == c"0" else _DIGITS
            elif state == _DIGITS:
                if self.whole <= _LARGEST:
                    self.whole = self.whole * 10 + (byte - c"0")
            else:
                self.state = _FRACTION if state <= _FRACTION else _EXPONENT
        elif point and (state == _ZERO or state == _DIGITS):
            self.state, self.fractional = _POINT, True
        elif power and (state == _ZERO or state == _DIGITS or state == _FRACTION):
            self.state, self.fractional = _E, True
        elif state == _E and (byte == c"+" or byte == c"-"):
            self.state = _E_SIGN
        elif state == _MINUS or state == _POINT or state == _E or state == _E_SIGN:
            self.state = _BROKEN
        elif state == _ZERO and _is_digit(byte):
            self.state = _BROKEN
        else:
            return False
        return True
