# cython: language_level=3
# The C types of kernel.py, read by Cython beside it; nothing here is needed to run it as Python.
cimport cython
from libc.string cimport memcpy

ctypedef (Py_ssize_t, long long, long long, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) span_t

cdef int RECORD_BYTES_MIN, BATCH_HEADER_BYTES, CODEC_BITS, APPEND_TIME_BIT
cdef int INT32_SHIFT_MAX, INT64_SHIFT_MAX
cdef long long INT64_MAX, INT64_MIN, TIMESTAMP_MS_MAX
cdef span_t BAD_SPAN

@cython.locals(start="const unsigned char*", end=Py_ssize_t, index=Py_ssize_t, span=span_t)
cpdef Py_ssize_t walk_records(const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t count) except -2

@cython.locals(view="const unsigned char*", end=Py_ssize_t, span=span_t, delta=cython.longlong, rows=list,
               headers=list)
cpdef tuple decode_records(
    bytes payload, Py_ssize_t at, Py_ssize_t count, long long base_offset, long long timestamp, bint fixed_timestamp
)

cdef class BytesColumn:
    cdef tuple held
    cdef int* ends
    cdef unsigned char* content
    cdef unsigned char* valid
    cdef readonly Py_ssize_t rows, rows_max, used, room, nulls

    cpdef move(self, int[::1] ends, unsigned char[::1] content, unsigned char[::1] valid)

cdef class Rows:
    cdef long long[::1] offsets
    cdef long long[::1] timestamps_us
    cdef BytesColumn keys, values
    cdef readonly Py_ssize_t rows_max, count, headers

cdef class Window:
    cdef const unsigned char[::1] payload
    cdef long long base_offset, timestamp, first, end
    cdef bint fixed_timestamp
    cdef Py_ssize_t begin, stop
    cdef readonly Py_ssize_t at, left, size

@cython.locals(view="const unsigned char*", keys=BytesColumn, values=BytesColumn, row=Py_ssize_t, at=Py_ssize_t,
               span=span_t, delta=cython.longlong, offset=cython.longlong)
cpdef decode_columns(Window window, Rows rows)

@cython.locals(at=Py_ssize_t, size=cython.longlong, fixed=cython.bint)
cdef bint _enter_next(Window window, const unsigned char* view) noexcept

@cython.locals(view="const unsigned char*", span=span_t, header_at=Py_ssize_t,
               name_bytes=cython.longlong, name_at=Py_ssize_t, content_bytes=cython.longlong, content_at=Py_ssize_t)
cpdef bint decode_headers(
    Window window, Py_ssize_t at, Py_ssize_t row, int[::1] ends, unsigned char[::1] valid, BytesColumn names,
    BytesColumn contents
) except *

@cython.locals(view="const unsigned char*", wanted="const unsigned char*", size=Py_ssize_t,
               span=span_t, header_at=Py_ssize_t, name_bytes=cython.longlong, name_at=Py_ssize_t,
               content_bytes=cython.longlong, content_at=Py_ssize_t, found_at=Py_ssize_t, found_bytes=cython.longlong)
cpdef bint decode_header(Window window, Py_ssize_t at, Py_ssize_t row, bytes name, BytesColumn column) except *

@cython.locals(body=bytearray)
cpdef append_record(
    bytearray out, long long offset_delta, long long timestamp_delta, object key, object value, object headers
)

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, left=Py_ssize_t, word=cython.uint, mixed=cython.uint)
cpdef unsigned int murmur2(bytes key) except? 0

@cython.locals(length=cython.longlong, headers=cython.longlong, timestamp_delta=cython.longlong,
               offset_delta=cython.longlong, key_bytes=cython.longlong, value_bytes=cython.longlong,
               key_at=Py_ssize_t, value_at=Py_ssize_t, headers_at=Py_ssize_t)
cdef inline span_t _scan(const unsigned char* view, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(length=cython.longlong)
cdef Py_ssize_t _skip_headers(const unsigned char* view, Py_ssize_t at, Py_ssize_t end, long long count) noexcept

@cython.locals(length=cython.longlong, headers=list)
cdef list _decode_headers(bytes payload, const unsigned char* view, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count)

cdef Py_ssize_t _past(Py_ssize_t at, long long length, long long length_min, Py_ssize_t end) noexcept

@cython.locals(raw=cython.ulonglong)
cdef inline (long long, Py_ssize_t) _varint(const unsigned char* view, Py_ssize_t at, Py_ssize_t end, int shift_max) noexcept

@cython.locals(raw=cython.ulonglong, byte=cython.ulonglong, shift=cython.int)
cdef (long long, Py_ssize_t) _long_varint(const unsigned char* view, Py_ssize_t at, Py_ssize_t end, int shift_max) noexcept

@cython.locals(raw=cython.ulonglong)
cdef int _put_varint(bytearray out, long long value) except -1

cdef int _put_bytes(bytearray out, object content) except -1

cdef const unsigned char* _start(const unsigned char[::1] view) noexcept

@cython.locals(raw=cython.longlong)
cdef long long _int32(const unsigned char* view, Py_ssize_t at) noexcept

cdef long long _int64(const unsigned char* view, Py_ssize_t at) noexcept

cdef bint _fits(BytesColumn column, long long length) noexcept

cdef inline int _put_column(
    BytesColumn column, Py_ssize_t row, const unsigned char* view, Py_ssize_t at, long long length
) except -1

cdef int _copy(
    unsigned char* into, Py_ssize_t to, const unsigned char* view, Py_ssize_t at, Py_ssize_t count
) except -1

@cython.locals(index=Py_ssize_t)
cdef bint _same(const unsigned char* view, Py_ssize_t at, const unsigned char* wanted, Py_ssize_t size) noexcept

cdef long long _to_us(long long timestamp_ms) noexcept

cdef bint _overflows(long long start, long long delta) noexcept
