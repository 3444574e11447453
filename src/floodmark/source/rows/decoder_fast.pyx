# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled versions of `decoder.follow` and `decoder.binary_columns`: decode well-formed rows in one pass.

They handle nothing unusual. For a truncated or garbled packet, an invalid date or a number with too many digits they
return None, and the Python functions process the block again. No byte is read outside a row, and no row may lie outside
the buffer: both are checked here, whatever the packets contain.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    typedef unsigned __int128 floodmark_u128;
    """
    ctypedef uint64_t u128 "floodmark_u128"

cdef enum:
    _FIXED, _DATE, _TIME, _DECIMAL, _TEXT

FIXED, DATE, TIME, DECIMAL, TEXT = _FIXED, _DATE, _TIME, _DECIMAL, _TEXT

cdef struct Column:
    int kind
    int size        # bytes per value
    int scale       # DECIMAL: digits after the decimal point
    int precision   # DECIMAL: maximum number of digits
    uint8_t* out    # the values; TEXT: the end of each cell in the column's own bytes
    int32_t* start  # TEXT: the start of each cell in the packets
    uint8_t* valid  # validity bitmap: one bit per row, 0 for NULL
    int64_t nulls
    int64_t total   # TEXT: bytes so far


def follow(data, heads, Py_ssize_t count, Py_ssize_t end):
    """Extends the `count` packet starts in `heads` over all complete packets; returns the new number of starts."""
    cdef Py_buffer bytes, numbers
    PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(heads, &numbers, PyBUF_WRITABLE)
        try:
            if numbers.len < 8 * count or count < 1 or end > bytes.len or (<int64_t*>numbers.buf)[count - 1] < 0:
                raise ValueError("packet starts outside the buffer")
            return _followed(<uint8_t*>bytes.buf, <int64_t*>numbers.buf, count, numbers.len // 8, end)
        finally:
            PyBuffer_Release(&numbers)
    finally:
        PyBuffer_Release(&bytes)


cdef Py_ssize_t _followed(
    const uint8_t* data, int64_t* heads, Py_ssize_t count, Py_ssize_t most, Py_ssize_t end
) noexcept:
    cdef int64_t at = heads[count - 1]
    while count < most and at + 4 <= end:
        at += 4 + (data[at] | <int64_t>data[at + 1] << 8 | <int64_t>data[at + 2] << 16)
        if at > end:
            break
        heads[count] = at
        count += 1
    return count


def columns(data, heads, kinds):
    """The columns of the rows, or None if the block has anything unusual.

    Each is its validity bitmap (None: no NULLs), its values and, for TEXT, its bytes; the values are then the cells' ends.
    `kinds` holds for each column: one of the kinds above; a number's size in bytes, or a decimal's scale; a decimal's
    precision.
    """
    cdef Py_buffer bytes, numbers
    PyObject_GetBuffer(data, &bytes, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(heads, &numbers, PyBUF_SIMPLE)
        try:
            return _columns(<uint8_t*>bytes.buf, bytes.len, <int64_t*>numbers.buf, numbers.len // 8 - 1, kinds)
        finally:
            PyBuffer_Release(&numbers)
    finally:
        PyBuffer_Release(&bytes)


cdef list _columns(const uint8_t* data, int64_t length, const int64_t* heads, Py_ssize_t rows, kinds):
    cdef Py_ssize_t count = len(kinds), c
    cdef list kept = []
    cdef Column* columns
    if rows < 1 or not count or length >= 1 << 31:
        return None
    columns = <Column*>malloc(count * sizeof(Column))
    if columns == NULL:
        raise MemoryError
    try:
        for c in range(count):
            kept.append(_made(&columns[c], rows, kinds[c]))
        if not _decoded(data, length, heads, columns, rows, count):
            return None
        return [_finished(data, &columns[c], rows, kept[c]) for c in range(count)]
    finally:
        free(columns)


cdef tuple _made(Column* column, Py_ssize_t rows, tuple of):
    """Allocates the buffers of a column."""
    kind, width, precision = of
    column.kind, column.scale, column.precision = kind, width, precision
    column.nulls = column.total = 0
    column.start = NULL
    column.size = width if kind == _FIXED else 4 if kind in (_DATE, _TEXT) else 8 if kind == _TIME else 16
    if column.size not in (1, 2, 4, 8, 16):
        raise ValueError("unsupported size of a number")
    values = PyByteArray_FromStringAndSize(NULL, column.size * (rows + 1))
    bits = PyByteArray_FromStringAndSize(NULL, (rows + 7) // 8)
    starts = PyByteArray_FromStringAndSize(NULL, 4 * rows) if kind == _TEXT else None
    column.out, column.valid = <uint8_t*>PyByteArray_AsString(values), <uint8_t*>PyByteArray_AsString(bits)
    memset(column.valid, 255, (rows + 7) // 8)
    if kind == _TEXT:
        column.start = <int32_t*>PyByteArray_AsString(starts)
        (<int32_t*>column.out)[0] = 0
    return values, bits, starts


cdef tuple _finished(const uint8_t* data, Column* column, Py_ssize_t rows, tuple made):
    """The result for a column; the bytes of TEXT cells are copied out of the packets."""
    cdef uint8_t* into
    cdef int32_t* ends = <int32_t*>column.out
    cdef Py_ssize_t i
    values, bits, _ = made
    text = None
    if column.kind == _TEXT:
        text = PyByteArray_FromStringAndSize(NULL, column.total)
        into = <uint8_t*>PyByteArray_AsString(text)
        for i in range(rows):
            memcpy(into + ends[i], data + column.start[i], ends[i + 1] - ends[i])
    return bits if column.nulls else None, values, text


cdef bint _decoded(
    const uint8_t* data, int64_t size, const int64_t* heads, Column* columns, Py_ssize_t rows, Py_ssize_t count
) noexcept:
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* bits
    cdef Py_ssize_t row, c, width = (count + 9) // 8
    cdef int64_t last = heads[0]
    cdef Column* column
    cdef int64_t length
    if last < 0 or heads[rows] > size:
        return False
    for row in range(rows):
        if heads[row + 1] < last + 5 + width or heads[row + 1] > heads[rows]:
            return False
        at, end = data + last + 4, data + heads[row + 1]
        last = heads[row + 1]
        if at[0]:
            return False
        bits = at + 1
        at = bits + width
        for c in range(count):
            column = &columns[c]
            if bits[(c + 2) >> 3] >> ((c + 2) & 7) & 1:
                _null(column, row)
                continue
            if column.kind == _FIXED:
                if end - at < column.size:
                    return False
                if column.size == 8:  # a copy of constant length compiles to one instruction
                    memcpy(column.out + 8 * row, at, 8)
                elif column.size == 4:
                    memcpy(column.out + 4 * row, at, 4)
                else:
                    memcpy(column.out + column.size * row, at, column.size)
                at += column.size
                continue
            if at >= end:
                return False
            length = at[0]
            at += 1
            if length >= 0xFB:
                length = _long(&at, end, length)
            if length < 0 or length > end - at:
                return False
            if column.kind == _TEXT:
                column.start[row] = <int32_t>(at - data)
                column.total += length
                (<int32_t*>column.out)[row + 1] = <int32_t>column.total
            elif column.kind == _DECIMAL:
                if not _decimal(column, row, at, length):
                    return False
            elif not _moment(column, row, at, length):
                return False
            at += length
        if at != end:
            return False
    return True


cdef inline void _null(Column* column, Py_ssize_t row) noexcept:
    column.nulls += 1
    column.valid[row >> 3] &= ~(<uint8_t>1 << (row & 7))
    if column.kind == _TEXT:
        column.start[row] = 0
        (<int32_t*>column.out)[row + 1] = <int32_t>column.total
        return
    memset(column.out + column.size * row, 0, column.size)


cdef int64_t _long(const uint8_t** at, const uint8_t* end, int64_t first) noexcept:
    """A length of two or three bytes; -1 if it is invalid, or longer than any block."""
    cdef int size = 2 if first == 0xFC else 3
    cdef int64_t length
    if first != 0xFC and first != 0xFD or end - at[0] < size:
        return -1
    length = at[0][0] | <int64_t>at[0][1] << 8
    if size == 3:
        length |= <int64_t>at[0][2] << 16
    at[0] += size
    return length


cdef inline bint _decimal(Column* column, Py_ssize_t row, const uint8_t* at, int64_t length) noexcept:
    """Parses a printed number; False unless it has exactly the column's digits after the decimal point."""
    cdef const uint8_t* end = at + length
    cdef bint negative = False
    cdef uint64_t part = 0
    cdef u128 value = 0
    cdef int digits = 0, behind = -1
    cdef unsigned int digit
    if at < end and at[0] == b"-":
        negative = True
        at += 1
    if at == end:
        return False
    while at < end:
        digit = <unsigned int>at[0] - 48
        at += 1
        if digit > 9:
            if digit != <unsigned int>-2 or behind >= 0:
                return False
            behind = 0
            continue
        if behind >= 0:
            behind += 1
        if digit or digits:
            digits += 1
        if digits <= 18:
            part = part * 10 + digit
        else:
            if digits == 19:
                value = part
            value = value * 10 + digit
    if digits > column.precision or behind == 0 or (behind if behind > 0 else 0) != column.scale:
        return False
    if digits <= 18:
        value = part
    if negative:
        value = 0 - value
    memcpy(column.out + 16 * row, &value, 16)
    return True


cdef inline bint _moment(Column* column, Py_ssize_t row, const uint8_t* at, int64_t length) noexcept:
    """Decodes a date or timestamp into days or microseconds since 1970; False if it does not exist."""
    cdef int64_t year, month, day, hour = 0, minute = 0, second = 0, days, moment
    cdef uint32_t micros = 0
    cdef int32_t short_days
    if length != 4 and (column.kind == _DATE or length != 7 and length != 11):
        return False
    year, month, day = at[0] | <int64_t>at[1] << 8, at[2], at[3]
    if year > 9999 or month < 1 or month > 12 or day < 1 or day > 31:
        return False
    if day > 28 and day > _days_in(year, month):
        return False
    days = _days(year, month, day)
    if column.kind == _DATE:
        short_days = <int32_t>days
        memcpy(column.out + 4 * row, &short_days, 4)
        return True
    if length > 4:
        hour, minute, second = at[4], at[5], at[6]
        if length == 11:
            memcpy(&micros, at + 7, 4)
        if hour > 23 or minute > 59 or second > 59 or micros > 999999:
            return False
    moment = (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000000 + micros
    memcpy(column.out + 8 * row, &moment, 8)
    return True


cdef inline int64_t _days_in(int64_t year, int64_t month) noexcept:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef inline int64_t _days(int64_t year, int64_t month, int64_t day) noexcept:
    """Days since 1970 in the Gregorian calendar, computed in 400-year eras that start in March."""
    cdef int64_t era, of_era, of_year
    year += 400  # January and February of year 0 belong to the era before
    if month <= 2:
        year -= 1
    era = year / 400
    of_era = year - era * 400
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) / 5 + day - 1
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468 - 146097
