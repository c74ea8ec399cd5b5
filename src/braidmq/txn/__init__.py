"""Kafka's transactions: who owns a transactional id, what takes part in its transaction, and how that ends.

Everything here is pure. No module touches a socket, a disk or a clock, nothing waits, and the same calls in
the same order always give the same effects. A shell (a protocol's face together with the broker) brings
requests, time and reports in, and carries effects out.

    coordinator       the transactional ids of one partition, the door through which the shell comes in
    marker_queue      markers for another broker: batched, and repeated until they are written
    transaction       one of them: its states, its producer's epoch, and how one follows another
    events            the requests, answers and effects that go in and out
    records, loading  how all of it is written to and read from `__transaction_state`
    versions          which code a client of an older version gets
    views             what DescribeTransactions and ListTransactions show
    settings          limits, under the names of Kafka's options

What a partition knows of transactions (its last stable offset, which ones were aborted, whether a batch may
be appended) is kept beside its log, by `braidmq.log.transactions`.

How a shell uses it

1.  Start. Read the internal topic from its beginning, give each record to `TransactionLoader.record`, then
    call `Transactions.load` and carry out its effects: they write the markers of transactions that were
    decided but not finished when the broker died. This has to come after the partitions and the group
    coordinator are loaded, for the markers go to them.
2.  Requests. Make a token, anything hashable by which the waiting client is found again, and call `init`,
    `add_partitions`, `add_offsets` or `end`. Every token is answered exactly once, by a `Reply` among the
    effects of this call or of a later one. `InitProducerId` without a transactional id is none of ours.
3.  Effects, each in the order of its list.
        `WriteRecord(id, ticket, record)`  append the record to the internal topic with acks=all. When it is
            durable call `record_written`; if it cannot be, `record_failed`. Carry out what comes back. There
            is at most one `WriteRecord` per id under way, so their order among ids does not matter, and a
            batch may hold several.
        `WriteMarkers(id, marker, partitions)`  for each partition append the control batch that
            `log.transactions.end_marker` builds, unless `PartitionTransactions.check_marker` says that it is
            there already. When it is durable report the partition with `markers_written`. One that no longer
            exists counts as written. If any partition failed, call `markers_failed` once; what is missing is
            tried again by `tick`.
        `Reply(token, answer)`  answer that client; if it has gone meanwhile, drop the reply.
    What must be durable before what, which follows from this order:
        the record of PrepareCommit or PrepareAbort before any marker and before the answer to EndTxn;
        every marker before the record of CompleteCommit or CompleteAbort;
        the record with a partition in it before AddPartitionsToTxn is answered, and before its first batch;
        the record with a new epoch before InitProducerId is answered.
4.  Produce with a transactional batch. If `PartitionTransactions.needs_verification`, take a guard with
    `begin_verification` before asking the coordinator, and hand the guard to `check` when appending: what
    ended in between has withdrawn it. Clients of Produce 12 and later do not send AddPartitionsToTxn: for
    these ask with `add_partitions` (version 5), and while that says CONCURRENT_TRANSACTIONS wait a few
    milliseconds and ask again, as the markers of the transaction before are on their way. For older clients
    ask with `verify`. If the answer is no, `withdraw` the guard. Say codes in the client's words:
    `versions.code_for(code, Api.PRODUCE, version)`.
5.  TxnOffsetCommit is a transactional batch to the offsets topic, and goes the same way (`add_partitions`
    from version 5 on, else `verify`), after the group's own check; see `braidmq.group`, number 5.
6.  Time. Keep one timer at `next_deadline()`, to be looked at again after each call; when it fires, call
    `tick` and carry out the effects. Every hour or so call `expire` and carry out its effects.
7.  Producer ids come from `new_producer_id`, which must answer at once: keep a block reserved. It may raise
    an ApiError, which the client gets; a time-out that needs one tries again later.

`Moment` carries two clocks. Time-outs run on the steady one, so that a step of the wall clock ends nobody's
transaction; the wall clock is what is stored, and what decides after a restart how much time is left.

Where it differs from Kafka, on purpose
    A producer that asks to continue (KIP-360) with an epoch that is no longer its own is fenced at once;
    Kafka first aborts the transaction of the producer that took its place, and then refuses it.
    A transaction that another producer's InitProducerId aborts leaves no way back for the one that was
    fenced, even if it speaks protocol 2, where Kafka may take its EndTxn for a retry.
    An EndTxn of protocol 2 with the new epoch, sent while the markers of the transaction before are
    written, gets CONCURRENT_TRANSACTIONS and not PRODUCER_FENCED, as the next AddPartitionsToTxn would be.
    The number of ids, the partitions of a transaction and the length of an id are limited, with
    POLICY_VIOLATION and INVALID_REQUEST.
"""
