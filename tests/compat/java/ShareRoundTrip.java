import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ListShareGroupOffsetsSpec;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A share group by the Java client: records accepted, released and rejected; then its administration. */
public class ShareRoundTrip {
    static final int RECORDS = 100;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        String group = topic + "-workers";
        Properties common = new Properties();
        common.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(common)) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            beginAtTheStart(admin, group);
            produce(bootstrap, topic, RECORDS);
            TreeMap<Long, Integer> deliveries = work(bootstrap, group, topic, RECORDS + 1);
            for (long offset = 0; offset < RECORDS; offset++) {
                expect(deliveries.get(offset) == (offset == 7 ? 2 : 1), "deliveries of " + offset);
            }
            administer(admin, bootstrap, group, topic);
        }
        System.out.println("ok");
    }

    static void beginAtTheStart(Admin admin, String group) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
        Collection<AlterConfigOp> change = List.of(new AlterConfigOp(earliest, AlterConfigOp.OpType.SET));
        admin.incrementalAlterConfigs(Map.of(resource, change)).all().get();
        String now = admin.describeConfigs(List.of(resource)).all().get().get(resource)
            .get("share.auto.offset.reset").value();
        expect(now.equals("earliest"), "the option of the group is " + now);
    }

    static void produce(String bootstrap, String topic, int count) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        try (var producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < count; number++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "job " + number));
            }
        }
    }

    /** Accepts everything, but offset 7 at its first delivery, which is released, and 9, which is rejected. */
    static TreeMap<Long, Integer> work(String bootstrap, String group, String topic, int expected) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "30");
        TreeMap<Long, Integer> deliveries = new TreeMap<>();
        List<Exception> refusals = new ArrayList<>();
        int seen = 0;
        try (var consumer = new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.setAcknowledgementCommitCallback((offsets, refusal) -> {
                if (refusal != null) {
                    refusals.add(refusal);
                }
            });
            consumer.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + 60_000;
            while (seen < expected && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(200))) {
                    int count = each.deliveryCount().get();
                    deliveries.put(each.offset(), count);
                    seen++;
                    if (each.offset() == 7 && count == 1) {
                        consumer.acknowledge(each, AcknowledgeType.RELEASE);
                    } else if (each.offset() == 9) {
                        consumer.acknowledge(each, AcknowledgeType.REJECT);
                    } else {
                        consumer.acknowledge(each, AcknowledgeType.ACCEPT);
                    }
                }
                consumer.commitSync(Duration.ofSeconds(30)).forEach(
                    (partition, refusal) -> expect(refusal.isEmpty(), partition + ": " + refusal));
            }
        }
        expect(seen == expected, seen + " deliveries instead of " + expected);
        expect(refusals.isEmpty(), "refused: " + refusals);
        return deliveries;
    }

    static void administer(Admin admin, String bootstrap, String group, String topic) throws Exception {
        TopicPartition only = new TopicPartition(topic, 0);
        var described = admin.describeShareGroups(List.of(group)).all().get().get(group);
        expect(described.groupState() == GroupState.EMPTY, "the group is " + described.groupState());
        var asked = Map.of(group, new ListShareGroupOffsetsSpec());
        var place = admin.listShareGroupOffsets(asked).partitionsToOffsetInfo(group).get().get(only);
        // Everything is settled, but Kafka writes a start down one step late: before offset 7 came again.
        expect(place.startOffset() >= 7, "the group is at " + place.startOffset());
        admin.alterShareGroupOffsets(group, Map.of(only, RECORDS - 10L)).all().get();
        expect(work(bootstrap, group, topic, 10).firstKey() == RECORDS - 10, "it begins where it was told to");
        String early = group + "-early";
        admin.alterShareGroupOffsets(early, Map.of(only, RECORDS - 5L)).all().get();
        expect(work(bootstrap, early, topic, 5).firstKey() == RECORDS - 5, "a group that was not there begins there");
        admin.deleteShareGroups(List.of(group)).all().get();
        expect(admin.listGroups().all().get().stream().noneMatch(each -> each.groupId().equals(group)), "it is gone");
    }

    static void expect(boolean holds, String what) {
        if (!holds) {
            throw new AssertionError(what);
        }
    }
}
