# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Hashes the rows of Arrow columns: SipHash-2-4 with 128 bits, keyed, over words that depend on the values alone.

A row is its bitmap of NULLs (a bit per column, in words of 64), followed by each other cell. A number, a date or a time
is one word, a decimal two, lowest first; text and bytes are their length, followed by their bytes, with zeros up to a
whole word. So no two rows of one table have the same words, and what memory holds in place of a NULL doesn't matter.

Every buffer's length is checked before its first byte is read, and every text's place.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_FromStringAndSize
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

cdef enum:
    _BIT, _INTEGER, _FLOAT, _DECIMAL, _TEXT

BIT, INTEGER, FLOAT, DECIMAL, TEXT = _BIT, _INTEGER, _FLOAT, _DECIMAL, _TEXT

cdef struct Column:
    int kind
    int size               # bytes per value; TEXT: per offset
    int64_t first          # index of the first row in the buffers
    const uint8_t* valid   # NULL if no value is
    const uint8_t* values  # TEXT: offsets
    const uint8_t* text
    int64_t text_length
    Py_buffer buffers[3]
    int held               # how many of the buffers are open

cdef struct Sip:
    uint64_t v0, v1, v2, v3


cdef inline uint64_t _rotated(uint64_t x, int by) noexcept nogil:
    return x << by | x >> (64 - by)


cdef inline void _round(Sip* s) noexcept nogil:
    s.v0 += s.v1
    s.v1 = _rotated(s.v1, 13) ^ s.v0
    s.v0 = _rotated(s.v0, 32)
    s.v2 += s.v3
    s.v3 = _rotated(s.v3, 16) ^ s.v2
    s.v0 += s.v3
    s.v3 = _rotated(s.v3, 21) ^ s.v0
    s.v2 += s.v1
    s.v1 = _rotated(s.v1, 17) ^ s.v2
    s.v2 = _rotated(s.v2, 32)


cdef inline void _word(Sip* s, uint64_t word) noexcept nogil:
    s.v3 ^= word
    _round(s)
    _round(s)
    s.v0 ^= word


cdef inline void _ended(Sip* s, uint64_t words, uint64_t* out) noexcept nogil:
    """The hash of so many words."""
    _word(s, (words * 8) << 56)
    s.v2 ^= 0xEEULL
    _round(s)
    _round(s)
    _round(s)
    _round(s)
    out[0] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3
    s.v1 ^= 0xDDULL
    _round(s)
    _round(s)
    _round(s)
    _round(s)
    out[1] = s.v0 ^ s.v1 ^ s.v2 ^ s.v3


def hashes(Py_ssize_t rows, columns, bytes key):
    """The hash of each row, 16 bytes; `columns`: kind, size, first, bitmap or None, values and, for TEXT, bytes."""
    cdef Py_ssize_t count = len(columns), c
    cdef Column* made
    cdef bint good
    cdef uint64_t[2] keys
    if len(key) != 16 or rows < 0 or not count:
        raise ValueError("a key has 16 bytes, and a row a column")
    memcpy(keys, <const char*>key, 16)
    out = PyByteArray_FromStringAndSize(NULL, 16 * rows)
    cdef uint64_t* into = <uint64_t*>PyByteArray_AsString(out)
    made = <Column*>calloc(count, sizeof(Column))
    if made == NULL:
        raise MemoryError
    try:
        for c in range(count):
            _opened(&made[c], rows, columns[c])
        with nogil:
            good = _hashed(made, count, rows, keys[0], keys[1], into)
        if not good:
            raise ValueError("a text outside its buffer")
    finally:
        for c in range(count):
            while made[c].held:
                made[c].held -= 1
                PyBuffer_Release(&made[c].buffers[made[c].held])
        free(made)
    return out


cdef int _opened(Column* column, Py_ssize_t rows, tuple of) except -1:
    """Takes hold of a column's buffers, and checks that they are long enough."""
    cdef int64_t end
    kind, size, first, valid, values, text = of
    column.kind, column.size, column.first = kind, size, first
    sizes = {_BIT: (0,), _INTEGER: (1, 2, 4, 8), _FLOAT: (4, 8), _DECIMAL: (16,), _TEXT: (4, 8)}
    if size not in sizes[kind] or first < 0:
        raise ValueError("unsupported column")
    end = column.first + rows
    if not rows:
        return 0
    column.values = _held(column, values)
    needed = (end + 7) // 8 if kind == _BIT else (end + (kind == _TEXT)) * size
    if column.buffers[column.held - 1].len < needed:
        raise ValueError("values are missing")
    if valid is not None:
        column.valid = _held(column, valid)
        if column.buffers[column.held - 1].len < (end + 7) // 8:
            raise ValueError("bits are missing")
    if kind == _TEXT and text is not None:
        column.text = _held(column, text)
        column.text_length = column.buffers[column.held - 1].len
    return 0


cdef const uint8_t* _held(Column* column, of) except? NULL:
    PyObject_GetBuffer(of, &column.buffers[column.held], PyBUF_SIMPLE)
    column.held += 1
    return <const uint8_t*>column.buffers[column.held - 1].buf


cdef bint _hashed(
    Column* columns, Py_ssize_t count, Py_ssize_t rows, uint64_t k0, uint64_t k1, uint64_t* out
) noexcept nogil:
    cdef Sip s
    cdef Py_ssize_t row, c
    cdef int64_t at
    cdef uint64_t word, words, nulls
    cdef Column* column
    for row in range(rows):
        s.v0, s.v1 = k0 ^ 0x736f6d6570736575ULL, k1 ^ 0x646f72616e646f6dULL ^ 0xEEULL
        s.v2, s.v3 = k0 ^ 0x6c7967656e657261ULL, k1 ^ 0x7465646279746573ULL
        words = nulls = 0
        for c in range(count):
            column = &columns[c]
            at = column.first + row
            if column.valid != NULL and not column.valid[at >> 3] >> (at & 7) & 1:
                nulls |= <uint64_t>1 << (c & 63)
            if c & 63 == 63 or c == count - 1:
                _word(&s, nulls)
                words += 1
                nulls = 0
        for c in range(count):
            column = &columns[c]
            at = column.first + row
            if column.valid != NULL and not column.valid[at >> 3] >> (at & 7) & 1:
                continue
            if column.kind == _TEXT:
                if not _text(&s, column, at, &words):
                    return False
                continue
            if column.kind == _DECIMAL:
                memcpy(&word, column.values + 16 * at, 8)
                _word(&s, word)
                words += 1
                memcpy(&word, column.values + 16 * at + 8, 8)
            elif column.kind == _FLOAT:
                word = _float(column, at)
            elif column.kind == _BIT:
                word = column.values[at >> 3] >> (at & 7) & 1
            else:
                word = _integer(column, at)
            _word(&s, word)
            words += 1
        _ended(&s, words, out + 2 * row)
    return True


cdef inline uint64_t _integer(const Column* column, int64_t at) noexcept nogil:
    cdef int64_t value
    cdef int32_t four
    cdef int16_t two
    if column.size == 8:
        memcpy(&value, column.values + 8 * at, 8)
    elif column.size == 4:
        memcpy(&four, column.values + 4 * at, 4)
        value = four
    elif column.size == 2:
        memcpy(&two, column.values + 2 * at, 2)
        value = two
    else:
        value = <int8_t>column.values[at]
    return <uint64_t>value


cdef inline uint64_t _float(const Column* column, int64_t at) noexcept nogil:
    """The bits of a double; a FLOAT becomes one, exactly."""
    cdef double value
    cdef float short
    cdef uint64_t word
    if column.size == 4:
        memcpy(&short, column.values + 4 * at, 4)
        value = short
    else:
        memcpy(&value, column.values + 8 * at, 8)
    memcpy(&word, &value, 8)
    return word


cdef inline bint _text(Sip* s, const Column* column, int64_t at, uint64_t* words) noexcept nogil:
    cdef int32_t[2] short
    cdef int64_t[2] ends
    cdef int64_t i, length
    cdef uint64_t word
    if column.size == 4:
        memcpy(short, column.values + 4 * at, 8)
        ends[0], ends[1] = short[0], short[1]
    else:
        memcpy(ends, column.values + 8 * at, 16)
    length = ends[1] - ends[0]
    if ends[0] < 0 or length < 0 or ends[1] > column.text_length:
        return False
    _word(s, <uint64_t>length)
    words[0] += 1 + (<uint64_t>length + 7) / 8
    i = ends[0]
    while i + 8 <= ends[1]:
        memcpy(&word, column.text + i, 8)
        _word(s, word)
        i += 8
    if i < ends[1]:
        word = 0
        memcpy(&word, column.text + i, ends[1] - i)
        _word(s, word)
    return True


def add(hashed, parts, sums):
    """Adds each row's hash to its part's sum, 24 bytes: count, sum modulo 2**128; `parts`: int32 each, or None for 0."""
    cdef Py_buffer[3] held
    cdef int count = 0
    cdef bint good
    try:
        for of in (hashed, hashed if parts is None else parts, sums):
            PyObject_GetBuffer(of, &held[count], PyBUF_WRITABLE if count == 2 else PyBUF_SIMPLE)
            count += 1
        if held[0].len % 16 or held[2].len < 24 or (parts is not None and held[1].len != held[0].len // 4):
            raise ValueError("a hash has 16 bytes, a sum 24, and a part 4")
        with nogil:
            good = _added(
                <uint64_t*>held[0].buf, NULL if parts is None else <int32_t*>held[1].buf,
                held[0].len // 16, <uint64_t*>held[2].buf, held[2].len // 24,
            )
        if not good:
            raise ValueError("a part that has no sum")
    finally:
        while count:
            count -= 1
            PyBuffer_Release(&held[count])


cdef bint _added(
    const uint64_t* rows, const int32_t* parts, Py_ssize_t count, uint64_t* sums, Py_ssize_t most
) noexcept nogil:
    cdef Py_ssize_t row
    cdef int32_t part = 0
    cdef uint64_t* sum
    for row in range(count):
        if parts != NULL:
            part = parts[row]
            if part < 0 or part >= most:
                return False
        sum = sums + 3 * part
        sum[0] += 1
        sum[1] += rows[2 * row]
        sum[2] += rows[2 * row + 1] + (sum[1] < rows[2 * row])
    return True
