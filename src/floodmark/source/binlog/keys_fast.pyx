# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The compiled versions of `keys.gathered` and of the loop in `stream.EventStream`: well-formed events in one pass.

They handle nothing unusual. For a row that doesn't fill its event exactly `gather` returns None; at a packet that is not an
ordinary whole event in its place, with the right checksum, `scan` stops. The Python functions look at the same bytes
again and decide. No byte is read outside the event, and none outside the buffer: both are checked here.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AsString, PyByteArray_Resize, PyByteArray_Size
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy

cdef struct Cell:
    int64_t at
    int64_t size  # -1: NULL

cdef struct Step:
    int32_t prefixed
    int32_t width
    int32_t key

cdef struct Image:
    const Step* steps
    Py_ssize_t count

cdef struct Found:
    Cell* cells      # of all keys, one key after the other
    int64_t keys
    int64_t room
    int64_t rows
    int64_t nulls


def gather(rows, before, after, bint old, bint new, Py_ssize_t partial, cells):
    """Appends the cells of the rows' keys; returns the numbers of rows, keys and NULL keys. None: something is unusual."""
    cdef Py_buffer data, first, second
    cdef Image images[2]
    cdef Found found
    cdef Py_ssize_t width = len(cells)
    first.buf = second.buf = NULL
    images[0].steps = images[1].steps = NULL
    images[0].count = images[1].count = -1
    found.cells = NULL
    found.keys = found.room = found.rows = found.nulls = 0
    PyObject_GetBuffer(rows, &data, PyBUF_SIMPLE)
    try:
        if before is not None:
            PyObject_GetBuffer(before, &first, PyBUF_SIMPLE)
            images[0].steps, images[0].count = <const Step*>first.buf, first.len // <Py_ssize_t>sizeof(Step)
        if after is not None:
            PyObject_GetBuffer(after, &second, PyBUF_SIMPLE)
            images[1].steps, images[1].count = <const Step*>second.buf, second.len // <Py_ssize_t>sizeof(Step)
        if not _fit(&images[0], width) or not _fit(&images[1], width):
            return None
        if not _located(<const uint8_t*>data.buf, data.len, images, old, new, partial, width, &found):
            return None
        _append(<const uint8_t*>data.buf, cells, width, &found)
        return found.rows, found.keys, found.nulls
    finally:
        free(found.cells)
        if first.buf != NULL:
            PyBuffer_Release(&first)
        if second.buf != NULL:
            PyBuffer_Release(&second)
        PyBuffer_Release(&data)


cdef bint _fit(const Image* image, Py_ssize_t width) noexcept:
    """Whether the steps can be taken: sizes and numbers in their range."""
    cdef Py_ssize_t n
    for n in range(image.count):
        if image.steps[n].width < 0 or image.steps[n].key >= width or image.steps[n].key < -1:
            return False
        if image.steps[n].prefixed and not 1 <= image.steps[n].width <= 4:
            return False
    return True


cdef bint _located(
    const uint8_t* data, int64_t size, const Image* images, bint old, bint new, int64_t partial, Py_ssize_t width, Found* found
) noexcept:
    """Notes the cells of every key; False for anything unusual."""
    cdef int64_t at = 0, begin
    cdef Py_ssize_t n
    cdef Cell* first
    cdef Cell* second
    cdef bint same
    while at < size:
        begin = at
        if not _room(found, width):
            return False
        first = found.cells + found.keys * width
        second = first + width
        for n in range(width):
            first[n].at, first[n].size = 0, -1
        if images[0].count >= 0:
            at = _image(data, size, at, &images[0], first)
            if at < 0:
                return False
        memcpy(second, first, width * sizeof(Cell))
        if images[1].count >= 0:
            if partial >= 0:
                if at >= size or data[at] > 1:
                    return False
                at += 1 + data[at] * partial
            at = _image(data, size, at, &images[1], second)
            if at < 0:
                return False
        if at == begin:  # a row without a column: nobody knows how many there are
            return False
        found.rows += 1
        if old and new:
            same = True
            for n in range(width):
                if first[n].size != second[n].size or (
                    first[n].size > 0 and first[n].at != second[n].at
                    and memcmp(data + first[n].at, data + second[n].at, <size_t>first[n].size) != 0
                ):
                    same = False
                    break
            _take(found, width, first)
            if not same:
                _take(found, width, second)
        elif old:
            _take(found, width, first)
        elif new:
            _take(found, width, second)
    return at == size


cdef bint _room(Found* found, Py_ssize_t width) noexcept:
    """Room for two more keys."""
    cdef int64_t wanted
    cdef Cell* more
    if found.keys + 2 <= found.room:
        return True
    wanted = 2 * found.room + 16
    more = <Cell*>realloc(found.cells, wanted * max(width, 1) * sizeof(Cell))  # without a key, rows are only counted
    if more == NULL:
        return False
    found.cells, found.room = more, wanted
    return True


cdef inline void _take(Found* found, Py_ssize_t width, const Cell* key) noexcept:
    """Keeps a key, at the end of those that are kept; or counts it, if a part of it is NULL."""
    cdef Py_ssize_t n
    cdef Cell* into = found.cells + found.keys * width
    for n in range(width):
        if key[n].size < 0:
            found.nulls += 1
            return
    if into != key:
        for n in range(width):
            into[n] = key[n]
    found.keys += 1


cdef inline int64_t _image(const uint8_t* data, int64_t size, int64_t at, const Image* image, Cell* key) noexcept:
    """Notes where the key's cells are; returns where the image ends, or -1."""
    cdef const uint8_t* bits = data + at
    cdef const Step* step
    cdef int64_t length
    cdef Py_ssize_t n
    at += (image.count + 7) >> 3
    if at > size:
        return -1
    for n in range(image.count):
        step = &image.steps[n]
        if bits[n >> 3] >> (n & 7) & 1:
            if step.key >= 0:
                key[step.key].at, key[step.key].size = 0, -1
            continue
        length = step.width
        if step.prefixed:
            if length > size - at:
                return -1
            if length == 1:
                length = data[at]
            elif length == 2:
                length = data[at] | <int64_t>data[at + 1] << 8
            elif length == 3:
                length = data[at] | <int64_t>data[at + 1] << 8 | <int64_t>data[at + 2] << 16
            else:
                length = data[at] | <int64_t>data[at + 1] << 8 | <int64_t>data[at + 2] << 16 | <int64_t>data[at + 3] << 24
            at += step.width
        if length > size - at:
            return -1
        if step.key >= 0:
            key[step.key].at, key[step.key].size = at, length
        at += length
    return at


cdef int _append(const uint8_t* data, cells, Py_ssize_t width, Found* found) except -1:
    """Copies the cells behind those that are there."""
    cdef Py_ssize_t n, held, ended = 0
    cdef int64_t key, total, end
    cdef uint8_t* into
    cdef uint8_t* marks = NULL
    cdef const Cell* cell
    for n in range(width):
        values, ends = cells[n]
        total = 0
        for key in range(found.keys):
            total += found.cells[key * width + n].size
        held = PyByteArray_Size(values)
        PyByteArray_Resize(values, held + total)
        into = <uint8_t*>PyByteArray_AsString(values)
        if ends is not None:
            ended = PyByteArray_Size(ends)
            PyByteArray_Resize(ends, ended + 8 * found.keys)
            marks = <uint8_t*>PyByteArray_AsString(ends) + ended
        end = held
        for key in range(found.keys):
            cell = &found.cells[key * width + n]
            memcpy(into + end, data + cell.at, <size_t>cell.size)
            end += cell.size
            if ends is not None:
                memcpy(marks + 8 * key, &end, 8)
    return 0


# ---------------------------------------------------------------- events

cdef uint32_t _CRC[8][256]


cdef void _fill() noexcept:
    """The tables of CRC-32, for eight bytes at once."""
    cdef uint32_t n, value
    cdef int bit, table
    for n in range(256):
        value = n
        for bit in range(8):
            value = value >> 1 ^ (0xEDB88320u if value & 1 else 0)
        _CRC[0][n] = value
    for n in range(256):
        for table in range(1, 8):
            _CRC[table][n] = _CRC[table - 1][n] >> 8 ^ _CRC[0][_CRC[table - 1][n] & 0xFF]


_fill()


cdef uint32_t _crc(const uint8_t* at, Py_ssize_t size) noexcept:
    cdef uint32_t found = 0xFFFFFFFFu, low, high
    while size >= 8:
        low = found ^ (at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24)
        high = at[4] | <uint32_t>at[5] << 8 | <uint32_t>at[6] << 16 | <uint32_t>at[7] << 24
        found = (
            _CRC[7][low & 0xFF] ^ _CRC[6][low >> 8 & 0xFF] ^ _CRC[5][low >> 16 & 0xFF] ^ _CRC[4][low >> 24]
            ^ _CRC[3][high & 0xFF] ^ _CRC[2][high >> 8 & 0xFF] ^ _CRC[1][high >> 16 & 0xFF] ^ _CRC[0][high >> 24]
        )
        at += 8
        size -= 8
    while size > 0:
        found = found >> 8 ^ _CRC[0][(found ^ at[0]) & 0xFF]
        at += 1
        size -= 1
    return found ^ 0xFFFFFFFFu


cdef inline uint32_t _u32(const uint8_t* at) noexcept:
    return at[0] | <uint32_t>at[1] << 8 | <uint32_t>at[2] << 16 | <uint32_t>at[3] << 24


cdef bint _ordinary(int kind) noexcept:
    """Whether events of the type only need to be handed out: not Rotate, Format_description and heartbeats."""
    return kind != 4 and kind != 15 and kind != 27 and kind != 41


cdef bint _is_rows(int kind) noexcept:
    return 23 <= kind <= 25 or 30 <= kind <= 32 or kind == 39 or 166 <= kind <= 171


def scan(view, Py_ssize_t at, Py_ssize_t end, int number, uint64_t place, bint checksum, bint gaps, skip, make, type, found):
    """Appends the events of whole ordinary packets, up to a Table_map or the first packet of another sort.

    Returns where it stopped, the number of the next packet, the place of the next event, and how many events of skipped
    tables it left out, with their bytes. `make` is tuple.__new__, for events of class `type`.
    """
    cdef Py_buffer data
    cdef const uint8_t* packet
    cdef int64_t length, size
    cdef uint64_t skipped = 0, skipped_bytes = 0, table
    cdef uint32_t timestamp, server, log_end, gap
    cdef int kind, flags, tail = 4 if checksum else 0
    cdef bint skipping = len(skip) > 0
    PyObject_GetBuffer(view, &data, PyBUF_SIMPLE)
    try:
        if at < 0 or end > data.len:
            raise ValueError("a place outside the buffer")
        while end - at >= 4 + 1 + 19 + tail:
            packet = <const uint8_t*>data.buf + at
            length = packet[0] | <int64_t>packet[1] << 8 | <int64_t>packet[2] << 16
            if length == 0xFFFFFF or length > end - at - 4 or packet[3] != number or packet[4] != 0:
                break
            packet += 5
            size = length - 1
            kind = packet[4]
            log_end, flags = _u32(packet + 13), packet[17] | <int>packet[18] << 8
            if size < 19 + tail or _u32(packet + 9) != size or not log_end or flags & 0x20 or not _ordinary(kind):
                break
            gap = log_end - <uint32_t>size - <uint32_t>place
            if gap and (not gaps or kind != 19 or gap >= 0x80000000u):
                break
            if checksum and _crc(packet, size - 4) != _u32(packet + size - 4):
                break
            place += gap
            if skipping and _is_rows(kind) and size >= 25 + tail:
                table = _u32(packet + 19) | <uint64_t>packet[23] << 32 | <uint64_t>packet[24] << 40
                if table in skip:
                    skipped += 1
                    skipped_bytes += size
                    at, number, place = at + 4 + length, (number + 1) & 0xFF, place + size
                    continue
            timestamp, server = _u32(packet), _u32(packet + 5)
            body = view[at + 5 + 19 : at + 5 + size - tail]
            found.append(make(type, (kind, timestamp, flags, place, size, body, server)))
            at, number, place = at + 4 + length, (number + 1) & 0xFF, place + size
            if kind == 19:
                break
        return at, number, place, skipped, skipped_bytes
    finally:
        PyBuffer_Release(&data)
