// What the Java client does on its own protocol versions: administer, produce with every codec, read, seek.
// Run by tests/compat/test_java.py as a single source file; it prints "ok" and ends with 0, or says what is wrong.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.InvalidRecordException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.OffsetOutOfRangeException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public class RoundTrip {
    static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};
    static final String[] ACKS = {"0", "1", "all"};
    static final int RECORDS = 200;

    static String bootstrap;
    static String topic;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        topic = arguments[1];
        try (Admin admin = Admin.create(settings())) {
            createAndDescribe(admin);
            int written = produceWithEverything();
            consumeAll(written);
            seekByTime();
            configure(admin);
            offsets(admin, written);
            describeTheRest(admin);
            deleteRecords(admin);
            refusals(admin);
            recordErrors(admin);
            grow(admin);
            admin.deleteTopics(List.of(topic)).all().get();
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

    static void check(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }

    static void createAndDescribe(Admin admin) throws Exception {
        NewTopic wanted = new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "7200000"));
        check(admin.createTopics(List.of(wanted)).numPartitions(topic).get() == 2, "partitions of a new topic");
        var described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        for (int wait = 0; described.partitions().size() < 2 && wait < 50; wait++) {
            Thread.sleep(100);
            described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        }
        check(described.partitions().size() == 2, "described partitions");
        check(admin.listTopics().names().get().contains(topic), "the list of topics");
    }

    static int produceWithEverything() throws Exception {
        int written = 0;
        for (String codec : CODECS) {
            written += produce(RECORDS, "compression.type", codec, "enable.idempotence", "true", "linger.ms", "5");
        }
        for (String acks : ACKS) {
            written += produce(RECORDS, "acks", acks, "enable.idempotence", "false");
        }
        return written;
    }

    static int produce(int count, String... pairs) throws Exception {
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings(pairs), bytes, bytes)) {
            List<Future<RecordMetadata>> pending = new ArrayList<>();
            for (int number = 0; number < count; number++) {
                byte[] key = ("key" + number).getBytes(StandardCharsets.UTF_8);
                byte[] text = ("value " + number + " of many").getBytes(StandardCharsets.UTF_8);
                byte[] value = number % 10 == 9 ? null : text;
                var record = new ProducerRecord<>(topic, 0, key, value);
                record.headers().add("number", Integer.toString(number).getBytes(StandardCharsets.UTF_8));
                pending.add(producer.send(record));
            }
            for (Future<RecordMetadata> future : pending) {
                future.get();
            }
        }
        return count;
    }

    static KafkaConsumer<byte[], byte[]> consumer() {
        var bytes = new ByteArrayDeserializer();
        Properties properties = settings("auto.offset.reset", "earliest", "enable.auto.commit", "false");
        var consumer = new KafkaConsumer<byte[], byte[]>(properties, bytes, bytes);
        consumer.assign(List.of(new TopicPartition(topic, 0)));
        return consumer;
    }

    static List<ConsumerRecord<byte[], byte[]>> take(KafkaConsumer<byte[], byte[]> consumer, int count) {
        List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 30_000;
        while (records.size() < count && System.currentTimeMillis() < deadline) {
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        check(records.size() >= count, records.size() + " of " + count + " records came");
        return records;
    }

    static void consumeAll(int written) {
        try (var consumer = consumer()) {
            consumer.seekToBeginning(consumer.assignment());
            var records = take(consumer, written);
            for (int at = 0; at < written; at++) {
                var record = records.get(at);
                int number = at % RECORDS;
                check(record.offset() == at, "offset " + record.offset() + " at place " + at);
                check(new String(record.key(), StandardCharsets.UTF_8).equals("key" + number), "key at " + at);
                check((record.value() == null) == (number % 10 == 9), "value at " + at);
                byte[] header = record.headers().lastHeader("number").value();
                check(new String(header, StandardCharsets.UTF_8).equals(Integer.toString(number)), "header at " + at);
            }
            consumer.seek(new TopicPartition(topic, 0), 17);
            check(take(consumer, 1).get(0).offset() == 17, "a seek by offset");
        }
    }

    static void seekByTime() {
        TopicPartition home = new TopicPartition(topic, 0);
        try (var consumer = consumer()) {
            long stamp = take(consumer, 1).get(0).timestamp();
            Map<TopicPartition, Long> when = new HashMap<>();
            when.put(home, stamp);
            check(consumer.offsetsForTimes(when).get(home).offset() == 0, "the offset of the first time");
            when.put(home, System.currentTimeMillis() + 86_400_000);
            check(consumer.offsetsForTimes(when).get(home) == null, "no offset in the future");
        }
    }

    static void configure(Admin admin) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        var set = new AlterConfigOp(new ConfigEntry("max.message.bytes", "900000"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        String value = "";
        for (int wait = 0; !value.equals("900000") && wait < 50; wait++) {
            Thread.sleep(50);
            var described = admin.describeConfigs(List.of(resource)).all().get().get(resource);
            value = described.get("max.message.bytes").value();
        }
        check(value.equals("900000"), "max.message.bytes is " + value);
    }

    static long offset(Admin admin, OffsetSpec wanted) throws Exception {
        TopicPartition home = new TopicPartition(topic, 0);
        return admin.listOffsets(Map.of(home, wanted)).partitionResult(home).get().offset();
    }

    static void offsets(Admin admin, int written) throws Exception {
        check(offset(admin, OffsetSpec.latest()) == written, "latest");
        check(offset(admin, OffsetSpec.earliest()) == 0, "earliest");
        long newest = offset(admin, OffsetSpec.maxTimestamp());
        check(newest >= 0 && newest < written, "the largest timestamp is at " + newest);
    }

    static void describeTheRest(Admin admin) throws Exception {
        var cluster = admin.describeCluster();
        int node = cluster.controller().get().id();
        check(cluster.nodes().get().stream().anyMatch(one -> one.id() == node), "the controller is a node");
        check(!admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node).isEmpty(), "log directories");
        TopicPartition home = new TopicPartition(topic, 0);
        var producers = admin.describeProducers(List.of(home)).partitionResult(home).get().activeProducers();
        check(producers.size() == CODECS.length, producers.size() + " idempotent producers");
    }

    static void deleteRecords(Admin admin) throws Exception {
        TopicPartition home = new TopicPartition(topic, 0);
        var deleted = admin.deleteRecords(Map.of(home, RecordsToDelete.beforeOffset(100)));
        check(deleted.lowWatermarks().get(home).get().lowWatermark() == 100, "the low watermark");
        try (var consumer = consumer()) {
            check(take(consumer, 1).get(0).offset() == 100, "the first record after deleting");
        }
    }

    interface Call {
        void run() throws Exception;
    }

    static void refused(Class<? extends Exception> expected, Call call) throws Exception {
        try {
            call.run();
        } catch (ExecutionException error) {
            check(expected.isInstance(error.getCause()), expected + " expected, got " + error.getCause());
            return;
        }
        throw new AssertionError(expected + " expected, nothing refused");
    }

    static void refusals(Admin admin) throws Exception {
        TopicPartition home = new TopicPartition(topic, 0);
        refused(TopicExistsException.class,
                () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get());
        refused(InvalidTopicException.class,
                () -> admin.createTopics(List.of(new NewTopic("bad name", 1, (short) 1))).all().get());
        refused(InvalidConfigurationException.class,
                () -> admin.createTopics(List.of(
                        new NewTopic(topic + "-x", 1, (short) 1).configs(Map.of("retention.ms", "x")))).all().get());
        refused(UnknownTopicOrPartitionException.class,
                () -> admin.deleteTopics(Set.of(topic + "-nowhere")).all().get());
        refused(OffsetOutOfRangeException.class,
                () -> admin.deleteRecords(Map.of(home, RecordsToDelete.beforeOffset(1_000_000))).all().get());
    }

    static void recordErrors(Admin admin) throws Exception {
        String compacted = topic + "-compacted";
        admin.createTopics(List.of(
                new NewTopic(compacted, 1, (short) 1).configs(Map.of("cleanup.policy", "compact")))).all().get();
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        var bytes = new ByteArraySerializer();
        try (var producer = new KafkaProducer<byte[], byte[]>(settings("linger.ms", "5000"), bytes, bytes)) {
            for (byte[] key : new byte[][] {{1}, null, {2}}) {
                sent.add(producer.send(new ProducerRecord<>(compacted, 0, key, new byte[] {9})));
            }
            producer.flush();
        }
        for (int at = 0; at < sent.size(); at++) {
            try {
                sent.get(at).get();
                throw new AssertionError("record " + at + " was taken");
            } catch (ExecutionException error) {
                boolean blamed = error.getCause() instanceof InvalidRecordException;
                check(blamed == (at == 1), "record " + at + " got " + error.getCause());
            }
        }
        admin.deleteTopics(List.of(compacted)).all().get();
    }

    static void grow(Admin admin) throws Exception {
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
    }
}
