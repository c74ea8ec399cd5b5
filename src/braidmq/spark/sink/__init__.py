"""Writing rows to topics: tasks send record batches in open transactions, the driver decides and ends them.

`writer` is what Spark calls; in a task (`task`), `columns` and `batches` turn rows into record batches.
`commit` says why every row is written once, and `ledger` is where a batch is decided.
"""
