# cython: language_level=3
# The C types of batch_walker.py, read by Cython beside it; nothing here is needed to run it as Python.
cimport cython

cdef int BATCH_HEADER_BYTES, BATCH_MAGIC, CODEC_BITS, CODEC_MAX, APPEND_TIME
cdef long long INT64_MAX

@cython.locals(start="const unsigned char*", end=Py_ssize_t, begin=Py_ssize_t, size=cython.longlong,
               offset=cython.longlong, next_offset=cython.longlong, count=cython.longlong,
               last_delta=cython.longlong, attributes=cython.int)
cpdef tuple check_batches(
    object view, Py_ssize_t at, long long until, int mask, Py_ssize_t bytes_max, object checksum
)

@cython.locals(start="const unsigned char*", end=Py_ssize_t, at=Py_ssize_t, first=Py_ssize_t, last=Py_ssize_t,
               size=cython.longlong)
cpdef tuple find_batches(const unsigned char[::1] view, long long offset)

@cython.locals(start="const unsigned char*", end=Py_ssize_t, size=cython.longlong)
cpdef Py_ssize_t skip_batches(const unsigned char[::1] view, Py_ssize_t at, long long offset) except -1

@cython.locals(start="const unsigned char*", size_all=Py_ssize_t, size=cython.longlong, offset=cython.longlong,
               records=cython.longlong, append_time=cython.int)
cpdef tuple count_records(const unsigned char[::1] view, Py_ssize_t at, long long first, long long end)

cdef const unsigned char* _start(const unsigned char[::1] view) noexcept

cdef long long _int64(const unsigned char* view, Py_ssize_t at) noexcept

@cython.locals(raw=cython.longlong)
cdef long long _int32(const unsigned char* view, Py_ssize_t at) noexcept
