# cython: language_level=3
# The C types of kernel.py, read by Cython beside it; nothing here is needed to run it as Python.
cimport cython

ctypedef (Py_ssize_t, long long, long long, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t) span_t

cdef int RECORD_BYTES_MIN, INT32_SHIFT_MAX, INT64_SHIFT_MAX
cdef long long INT64_MAX, INT64_MIN
cdef span_t BAD_SPAN

@cython.locals(end=Py_ssize_t, index=Py_ssize_t, span=span_t)
cpdef Py_ssize_t walk_records(const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t count) except -2

@cython.locals(view="const unsigned char[::1]", end=Py_ssize_t, span=span_t, delta=cython.longlong, rows=list,
               headers=list)
cpdef tuple decode_records(
    bytes payload, Py_ssize_t at, Py_ssize_t count, long long base_offset, long long timestamp, bint fixed_timestamp
)

@cython.locals(body=bytearray)
cpdef append_record(
    bytearray out, long long offset_delta, long long timestamp_delta, object key, object value, object headers
)

@cython.locals(size=Py_ssize_t, at=Py_ssize_t, left=Py_ssize_t, word=cython.uint, mixed=cython.uint)
cpdef unsigned int murmur2(bytes key) except? 0

@cython.locals(length=cython.longlong, headers=cython.longlong, timestamp_delta=cython.longlong,
               offset_delta=cython.longlong, key_bytes=cython.longlong, value_bytes=cython.longlong,
               key_at=Py_ssize_t, value_at=Py_ssize_t, headers_at=Py_ssize_t)
cdef span_t _scan(const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t end) noexcept

@cython.locals(length=cython.longlong)
cdef Py_ssize_t _skip_headers(const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t end, long long count) noexcept

@cython.locals(length=cython.longlong, headers=list)
cdef list _decode_headers(bytes payload, const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t end, Py_ssize_t count)

cdef Py_ssize_t _past(Py_ssize_t at, long long length, long long length_min, Py_ssize_t end) noexcept

@cython.locals(raw=cython.ulonglong, byte=cython.ulonglong, shift=cython.int)
cdef (long long, Py_ssize_t) _varint(const unsigned char[::1] view, Py_ssize_t at, Py_ssize_t end, int shift_max) noexcept

@cython.locals(raw=cython.ulonglong)
cdef int _put_varint(bytearray out, long long value) except -1

cdef int _put_bytes(bytearray out, object content) except -1

cdef bint _overflows(long long start, long long delta) noexcept
