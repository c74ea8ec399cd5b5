# cython: language_level=3
# The C types of column_writer.py, read by Cython beside it; nothing here is needed to run it as Python.
cimport cython

cdef long long MICROSECONDS_PER_MS
cdef unsigned long long HASH_SEED, HASH_MULTIPLIER, MASK_32

cdef class ByteColumn:
    cdef const int[::1] offsets
    cdef const unsigned char[::1] content
    cdef const unsigned char[::1] valid
    cdef Py_ssize_t shift
    cdef bint nullable

cdef class NumberColumn:
    cdef const long long[::1] numbers
    cdef const unsigned char[::1] valid
    cdef Py_ssize_t shift
    cdef bint nullable

cdef class HeaderColumn:
    cdef const int[::1] offsets
    cdef const unsigned char[::1] valid
    cdef Py_ssize_t shift
    cdef bint nullable
    cdef ByteColumn names
    cdef ByteColumn contents

cdef class Columns:
    cdef ByteColumn keys
    cdef ByteColumn values
    cdef HeaderColumn headers
    cdef NumberColumn timestamps_us
    cdef ByteColumn tags
    cdef bytes tag_name
    cdef ByteColumn deliver_at
    cdef bytes deliver_at_name
    cdef long long now_ms

@cython.locals(row=Py_ssize_t, partition=cython.longlong, start=Py_ssize_t, hashed=cython.uint)
cpdef Py_ssize_t choose_partitions(
    int[::1] chosen, Py_ssize_t rows, NumberColumn wanted, ByteColumn keys, int partitions, long long written,
    long long row_bytes, long long turn_bytes
) except -2

@cython.locals(row=Py_ssize_t, partition=cython.int, count=cython.int, total=cython.int)
cpdef group_rows(const int[::1] chosen, Py_ssize_t rows, int partitions, int[::1] order, int[::1] ends)

@cython.locals(end=Py_ssize_t, row=Py_ssize_t, timestamp=cython.longlong, delta=cython.longlong, size=Py_ssize_t)
cpdef tuple append_rows(
    unsigned char[::1] out, Py_ssize_t at, const int[::1] order, Py_ssize_t first, Py_ssize_t last, Columns columns,
    long long count, long long base_timestamp, long long max_timestamp
)

@cython.locals(size=Py_ssize_t)
cpdef Py_ssize_t record_bytes(Columns columns, Py_ssize_t row) except -1

cpdef long long timestamp_ms(Columns columns, Py_ssize_t row) except? -1

@cython.locals(times=NumberColumn)
cdef long long _timestamp(Columns columns, Py_ssize_t row) noexcept

@cython.locals(size=Py_ssize_t, headers=Py_ssize_t, at=Py_ssize_t)
cdef Py_ssize_t _body_bytes(Columns columns, Py_ssize_t row, long long delta, long long count) noexcept

@cython.locals(headers=Py_ssize_t, extra=Py_ssize_t, header=Py_ssize_t)
cdef Py_ssize_t _put_headers(unsigned char[::1] out, Py_ssize_t at, Columns columns, Py_ssize_t row) noexcept

cdef Py_ssize_t _headers_from(HeaderColumn headers, Py_ssize_t row) noexcept

cdef Py_ssize_t _headers_to(HeaderColumn headers, Py_ssize_t row) noexcept

cdef bint _has(ByteColumn column, Py_ssize_t row) noexcept

@cython.locals(size=Py_ssize_t)
cdef Py_ssize_t _cell_bytes(ByteColumn column, Py_ssize_t row) noexcept

@cython.locals(start=Py_ssize_t, size=Py_ssize_t)
cdef Py_ssize_t _put_cell(unsigned char[::1] out, Py_ssize_t at, ByteColumn column, Py_ssize_t row) noexcept

@cython.locals(byte=cython.uchar)
cdef Py_ssize_t _put_name(unsigned char[::1] out, Py_ssize_t at, bytes name) noexcept

@cython.locals(index=Py_ssize_t)
cdef void _copy(
    unsigned char[::1] out, Py_ssize_t at, const unsigned char[::1] content, Py_ssize_t start, Py_ssize_t size
) noexcept

cdef bint _is_valid(const unsigned char[::1] valid, Py_ssize_t row) noexcept

@cython.locals(raw=cython.ulonglong, size=Py_ssize_t)
cdef Py_ssize_t _varint_bytes(long long value) noexcept

@cython.locals(raw=cython.ulonglong)
cdef Py_ssize_t _put_varint(unsigned char[::1] out, Py_ssize_t at, long long value) noexcept

@cython.locals(mixed=cython.ulonglong, word=cython.ulonglong, end=Py_ssize_t, left=Py_ssize_t)
cdef unsigned int _murmur2(const unsigned char[::1] content, Py_ssize_t at, Py_ssize_t size) noexcept
