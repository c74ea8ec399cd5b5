"""How the figures are measured, in words: the part of the generated pages that no figure changes."""

from __future__ import annotations

BROKER = """## How it is measured

- One server runs at a time; the two take turns over the rounds. A cell is the median of its rounds, with
  the lowest and the highest in brackets. Each server is warmed up first, because a JVM needs it. Server
  and client share the machine's cores.
- *cached*: an ack means the page cache (Braid `flush=async`, Kafka's default). *synced*: an ack of
  acks=all means the disk (Braid `flush=sync`, Kafka `flush.messages=1`). Everything else is each server's
  default. Kafka is a single KRaft node with the heap and collector flags of its own start script. With
  acks=1, synced, Kafka syncs before it answers; Braid answers first, and consumers see the records after
  the sync.
- Both servers get the same bytes from the same client in `bench/`. It sends record batches that were
  built beforehand, so that one Python process can saturate either server. Produce: 4 connections, 5
  requests in flight on each, batches of about 100 KB. Consume: one connection, all partitions in one
  Fetch, 1 MB of each. The librdkafka rows use confluent-kafka with its defaults.
- Latency is end to end and open-loop: from the time a message was due until a consumer has it.
- Cold: the segments were synced and dropped from the page cache before the read. CPU is the server's user
  and system time. RSS idle is taken 3 s after the first ack; RSS peak is the highest (with idle
  connections: the RSS while they are open). MB are 10^6 bytes of values.
- Start: from the start of the process until a record sent to an existing topic is acknowledged. Creation
  of many partitions: until each of them has taken a record. There Kafka has `segment.index.bytes=65536`;
  with its default and a large read-ahead of the disk it falls to 1 MB/s.
- Beside cold reads: end-to-end latency while a second client, in its own process, reads 16 partitions
  that are dropped from the page cache again and again. *p99 without* is taken just before. Beside a first
  fetch: after a restart, a second client asks for every partition in one Fetch; each has one record.
  Stop: from SIGTERM until the process has ended, with all of those partitions open.
- Backlog: 100 B messages, synced and dropped from the page cache before the producers are measured again.
- Groups: members are thin clients on one thread (`bench/crowd.py`, `bench/members.py`), the same for both
  servers. A rebalance lasts from the 11th consumer's first request until all 44 partitions are read again
  and it has its share. Classic members poll every 10 ms, not every 3 s, which would be most of the time
  measured; members of group.protocol=consumer poll as often as the server asks for. *Held back*: records
  written to partitions that nobody read during the rebalance. *Lost meanwhile*: those per second of it,
  of 4,400.
- When Braid answers an offset commit, a change of a group, or an acknowledgement in a share group, it is
  on disk. When Kafka answers, it is in the page cache. Both are defaults.
- Commits: 64 consumers in 8 groups, each with one request for 4 partitions in flight. 1,000 groups: one
  member each, heartbeats and commits in turn, one request in flight each.
- Share groups: up to 500 records a request, accepted with the next one; a record counts when it is
  accepted.
- Transactions add partitions first, as librdkafka does. Bulk: one producer, 4 partitions, 5 requests of
  100 KB in flight, a reader at read_committed; rates are taken until the last commit, and until all was
  read.
- Idle members: 100 in a group (group.protocol=consumer), a connection each; CPU and RSS once they are
  settled. The load fails if a member is refused or forgotten.
- Every measurement has new topics, and each partition gets its first batches before the clock runs.
"""

SPARK = """## How it is measured

- The same Spark, the same Braid broker and the same topics (flush=async, 8 partitions). The column Braid
  reads and writes through Braid, the column Kafka through Spark's own Kafka connector, each in its own
  process. 20 s of runs that do not count come first (4 s for loads like an earlier one), so that the JVM
  has compiled what is measured. A round is the median of three runs.
- Batches are read with `braidmq.spark.read`, which leaves out what a query does not use. *Count* is
  `df.count()`. *Every value* adds up the lengths of all values. *Every value and all other columns* does
  so with `format("braid")`, which leaves out nothing. The connector always reads everything.
- Reads use the network unless they say *localLog*. There, the column Kafka is Braid's own network path;
  the two take turns, seven runs of each, in one process.
- *Source that reads nothing* (`bench/spark_floor.py`) hands a few batches to Spark over and over: the
  most that `read` can reach. *Source that only checks* also checks the CRC of every batch on the local
  disk: the most that a local log can reach.
- Values are orders in JSON, no two alike, in record batches of 250 KB, which suits the connector, or of
  16 KB where the row says so, the default of Kafka's producer.
- *To Parquet* is `braidmq.spark.export` (synced) against the connector with Spark's writer, the same four
  columns in snappy. *To Parquet by Spark* uses Spark's writer on both sides. *Topic to Parquet by date*
  is `braid lake archive` (all columns, synced, committed) against the connector with Spark's writer, both
  zstd.
- Braid's sink is measured at least once, as the connector writes, and exactly once.
- CPU and memory are those of driver, JVM and Python workers together.
"""
