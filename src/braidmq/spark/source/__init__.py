"""Reading topics: the driver turns options into offsets and tasks, and tasks turn record batches into Arrow.

In the order of the data: `query` reads the options, `positions` finds partitions and offsets, `plan` and
`splits` cut tasks, `batch_reader` and `stream_reader` are what Spark calls; in a task (`task`), `fetch` or
`local_log` gets record batches and `arrow` or `row_counter` turns them into rows.
"""
