import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions by the Java client, which speaks the newest protocol: epochs go up with every transaction, and
 * partitions join one by being written to. It prints "ok" and ends with 0, or says what is wrong.
 */
public class TransactionRoundTrip {
    static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    static final int RECORDS = 50;

    static String bootstrap;
    static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        try (Admin admin = Admin.create(settings())) {
            admin.createTopics(List.of(new NewTopic(topic, 2, (short) 1))).all().get();
            commitAndAbort();
            manyInARow();
            openTransactionHoldsReadersBack(admin);
            offsets();
            fencing(admin);
            timeOut(admin);
            administration(admin);
        }
        System.out.println("ok");
    }

    static Properties settings(String... pairs) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        for (int at = 0; at < pairs.length; at += 2) {
            properties.put(pairs[at], pairs[at + 1]);
        }
        return properties;
    }

    static KafkaProducer<String, String> producer(String id, String... pairs) {
        Properties properties = settings(pairs);
        properties.put("transactional.id", topic + "-" + id);
        var made = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
        made.initTransactions();
        return made;
    }

    static void send(KafkaProducer<String, String> producer, int partition, String value) {
        producer.send(new ProducerRecord<>(topic, partition, null, value));
    }

    static List<String> read(int partition, String level) {
        Properties properties = settings("isolation.level", level, "enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            TopicPartition home = new TopicPartition(topic, partition);
            consumer.assign(List.of(home));
            consumer.seekToBeginning(List.of(home));
            long end = consumer.endOffsets(List.of(home)).get(home);
            List<String> values = new ArrayList<>();
            long deadline = System.currentTimeMillis() + 30_000;
            while (consumer.position(home) < end && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(100)).forEach(record -> values.add(record.value()));
            }
            check(consumer.position(home) >= end, "partition " + partition + " is read to its end at " + level);
            return values;
        }
    }

    static void commitAndAbort() {
        List<String> kept = new ArrayList<>();
        for (String codec : CODECS) {
            try (var producer = producer(codec, "compression.type", codec, "batch.size", "400")) {
                for (boolean commit : new boolean[] {false, true}) {
                    producer.beginTransaction();
                    for (int number = 0; number < RECORDS; number++) {
                        String value = codec + " " + commit + " " + number;
                        send(producer, 0, value);
                        send(producer, 1, value);
                        if (commit) {
                            kept.add(value);
                        }
                    }
                    producer.flush();
                    if (commit) {
                        producer.commitTransaction();
                    } else {
                        producer.abortTransaction();
                    }
                }
            }
        }
        for (int partition : new int[] {0, 1}) {
            check(read(partition, "read_committed").equals(kept), "what is committed in " + partition);
            check(read(partition, "read_uncommitted").size() == 2 * kept.size(), "all of " + partition);
        }
    }

    static void manyInARow() {
        int before = read(0, "read_committed").size();
        try (var producer = producer("many")) {
            for (int number = 0; number < 100; number++) {
                producer.beginTransaction();
                send(producer, 0, "many " + number);
                if (number % 3 == 0) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        check(read(0, "read_committed").size() == before + 66, "two of three in a row");
    }

    static long stableOffset(Admin admin, int partition) throws Exception {
        TopicPartition home = new TopicPartition(topic, partition);
        var options = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
        return admin.listOffsets(Map.of(home, OffsetSpec.latest()), options).partitionResult(home).get().offset();
    }

    static void openTransactionHoldsReadersBack(Admin admin) throws Exception {
        long before = stableOffset(admin, 0);
        int seen = read(0, "read_committed").size();
        try (var producer = producer("open")) {
            producer.beginTransaction();
            send(producer, 0, "open");
            producer.flush();
            check(stableOffset(admin, 0) == before, "the last stable offset waits");
            check(read(0, "read_committed").size() == seen, "readers wait");
            producer.commitTransaction();
            await(() -> read(0, "read_committed").size() == seen + 1, "readers go on");
        }
    }

    static void offsets() throws Exception {
        String group = topic + "-group";
        TopicPartition home = new TopicPartition(topic, 0);
        Properties properties = settings(
            "group.id", group, "isolation.level", "read_committed", "auto.offset.reset", "earliest",
            "enable.auto.commit", "false");
        try (var producer = producer("offsets");
                var consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            while (consumer.poll(Duration.ofMillis(200)).isEmpty()) {
                // The group is still forming.
            }
            producer.beginTransaction();
            producer.sendOffsetsToTransaction(Map.of(home, new OffsetAndMetadata(7)), consumer.groupMetadata());
            producer.abortTransaction();
            check(consumer.committed(java.util.Set.of(home)).get(home) == null, "aborted offsets are gone");
            producer.beginTransaction();
            send(producer, 1, "with offsets");
            producer.sendOffsetsToTransaction(Map.of(home, new OffsetAndMetadata(9, "note")), consumer.groupMetadata());
            producer.commitTransaction();
            OffsetAndMetadata found = consumer.committed(java.util.Set.of(home)).get(home);
            check(found.offset() == 9 && found.metadata().equals("note"), "committed offsets are there");
        }
    }

    static void fencing(Admin admin) throws Exception {
        int seen = read(0, "read_committed").size();
        var first = producer("fenced");
        first.beginTransaction();
        send(first, 0, "by the first");
        first.flush();
        try (var second = producer("fenced")) {
            refused(ProducerFencedException.class, first::commitTransaction);
            second.beginTransaction();
            send(second, 0, "by the second");
            second.commitTransaction();
            await(() -> read(0, "read_committed").size() == seen + 1, "the second goes on");
            admin.fenceProducers(List.of(topic + "-fenced")).all().get();
            second.beginTransaction();
            send(second, 0, "after an administrator");
            refused(KafkaException.class, second::commitTransaction);
        }
        first.close(Duration.ZERO);
        check(read(0, "read_committed").size() == seen + 1, "nothing of a fenced producer is seen");
    }

    static void timeOut(Admin admin) throws Exception {
        long before = stableOffset(admin, 1);
        var slow = producer("slow", "transaction.timeout.ms", "1000");
        slow.beginTransaction();
        send(slow, 1, "slow");
        slow.flush();
        await(() -> stableOffset(admin, 1) == before + 2, "the transaction is aborted by time");
        refused(KafkaException.class, slow::commitTransaction);
        slow.close(Duration.ZERO);
        check(!read(1, "read_committed").contains("slow"), "what took too long is not seen");
    }

    static void administration(Admin admin) throws Exception {
        String id = topic + "-watched";
        TopicPartition home = new TopicPartition(topic, 1);
        try {
            admin.describeTransactions(List.of(id)).all().get();
            throw new AssertionError("an unknown id is described");
        } catch (ExecutionException error) {
            check(error.getCause() instanceof TransactionalIdNotFoundException, "unknown: " + error.getCause());
        }
        var watched = producer("watched");
        watched.beginTransaction();
        send(watched, 1, "watched");
        watched.flush();
        var described = admin.describeTransactions(List.of(id)).description(id).get();
        check(described.state() == TransactionState.ONGOING, "it is " + described.state());
        check(described.topicPartitions().equals(java.util.Set.of(home)), "where: " + described.topicPartitions());
        var options = new ListTransactionsOptions().filterStates(List.of(TransactionState.ONGOING));
        Collection<String> ids = admin.listTransactions(options).all().get().stream()
            .map(one -> one.transactionalId()).toList();
        check(ids.contains(id), "it is listed");
        var state = admin.describeProducers(List.of(home)).partitionResult(home).get().activeProducers().stream()
            .filter(one -> one.producerId() == described.producerId()).findFirst().get();
        check(state.currentTransactionStartOffset().isPresent(), "where it began");
        long stable = stableOffset(admin, 1);
        // By its id: Braid takes no markers from clients, as abortTransaction would write them.
        admin.fenceProducers(List.of(id)).all().get();
        await(() -> stableOffset(admin, 1) == stable + 2, "readers go on");
        watched.close(Duration.ZERO);
        check(!read(1, "read_committed").contains("watched"), "what was aborted is not seen");
    }

    interface Call {
        void run() throws Exception;
    }

    interface Condition {
        boolean holds() throws Exception;
    }

    static void await(Condition condition, String what) throws Exception {
        long deadline = System.currentTimeMillis() + 30_000;
        while (!condition.holds()) {
            check(System.currentTimeMillis() < deadline, "waited in vain: " + what);
            Thread.sleep(50);
        }
    }

    static void refused(Class<? extends Exception> expected, Call call) throws Exception {
        try {
            call.run();
        } catch (Exception error) {
            check(expected.isInstance(error), expected + " expected, got " + error);
            return;
        }
        throw new AssertionError(expected + " expected, nothing refused");
    }

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
