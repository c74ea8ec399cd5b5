"""Groups of consumers: who belongs to one, who reads what, and how far each has come.

Everything here is pure. No module touches a socket, a disk or a clock, nothing waits, and the same calls in
the same order always give the same answers. A shell (a protocol's face together with the broker) brings
requests and time in, and carries effects out.

    groups            all groups of a broker, the door through which the shell comes in
    classic           a group of the classic protocol, on top of rebalance (the two barriers) and roster
                      (the members)
    consumer_group    a group of the new protocol, with consumer_member, and assignors that decide who
                      reads what, and consumer_commits who may commit; migration lets classic members
                      stay in it until they are upgraded
    share_group       membership of a share group; what its members acquire is kept by the delivery engine
    streams_group     a group of a Kafka Streams application, with streams_member, streams_tasks (who has
                      which), streams_topology (what tasks there are) and streams_assignor
    reconciliation    a member's way to its target, in consumer and streams groups
    catalog           what the broker tells its groups about topics
    offsets           what a group has committed
    records, consumer_records, streams_records, loading, group_types
                      how all of it is written to and read from `__consumer_offsets`
    events            the requests, answers and effects that go in and out
    settings          limits, under the names of Kafka's options

How a shell uses it

1.  Start. Read the internal topic from its beginning, give each record to `GroupLoader.record` (with
    the producer id if its batch is transactional) and each transaction marker to `GroupLoader.marker`, then
    call `Groups.load`. Until then requests are answered with COORDINATOR_LOAD_IN_PROGRESS.
2.  JoinGroup and SyncGroup. Make a token, anything hashable by which the waiting client is found again,
    keep what is needed to answer under it, and call `Groups.join` or `Groups.sync`. Carry out the effects
    that come back, in their order:
        `Reply(token, answer)`   answer that client, which need not be the one that has just asked;
        `WriteSnapshot(snapshot)` write `records.group_record(snapshot, wall_ms)` to the internal topic;
        `WriteRecords(records)`  write these records to the internal topic.
    Replies after a `WriteSnapshot` or `WriteRecords` in the same list are sent when that is durable. If it
    cannot be written, answer them with COORDINATOR_NOT_AVAILABLE, call `Groups.write_failed` and carry out
    its effects. Each token is answered exactly once; a client that has gone meanwhile is no matter, drop
    its reply.
3.  Heartbeat, LeaveGroup. `Groups.heartbeat` answers at once. `Groups.leave` gives the answer and effects
    for others.
4.  ConsumerGroupHeartbeat. `Groups.consumer_heartbeat` gives the answer and effects to be carried out
    first, in the sense of 2. ApiErrors are answers. The broker's topics come in as a `catalog.Catalog`.
    ShareGroupHeartbeat is answered by `Groups.share_heartbeat`; only that the group is there is written.
    Those known from stored delivery state are announced with `Groups.add_share`. StreamsGroupHeartbeat is
    answered by `Groups.streams_heartbeat` like ConsumerGroupHeartbeat; its answer may name topics to create.
5.  OffsetCommit. Check with `Groups.check_commit` and each metadata with `offsets.checked_metadata`, write
    one `records.offset_record` per partition, and when they are durable enter them with
    `Groups.offsets_to_change(group_id, now_ms).commit(...)`; then answer. In a transaction
    (TxnOffsetCommit) the records go into a transactional batch and are entered with
    `Groups.commit_undecided`; the marker calls `Groups.decide`. OffsetFetch reads
    `Groups.offsets(group_id)`, after `Groups.check_fetch`; with require_stable, offsets that are undecided
    are answered with UNSTABLE_OFFSET_COMMIT.
6.  OffsetDelete, DeleteGroups, DescribeGroups, ListGroups. `check_offset_delete`, `delete`,
    `find(...).describe()`, and iterating over `Groups`.
7.  Time. Keep one timer at `Groups.next_deadline()`, which is to be looked at again after each call of 2 to
    4; when it fires, call `Groups.tick` and carry out the effects. Heartbeats only move deadlines away, so
    they need no look.
8.  Now and then (offsets.retention.check.interval.ms) ask `Groups.expired`, write the tombstones it gives,
    and when they are durable call `Groups.forget`.

`now_ms` is monotonic time in milliseconds, so that a step of the wall clock ends nobody's session;
`wall_ms` is the wall clock, for what is stored. Members' ids need randomness, which comes in as `new_id`.
"""
