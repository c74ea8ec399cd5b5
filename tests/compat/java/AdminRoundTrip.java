import java.time.Duration;
import java.util.Collection;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.FeatureUpdate;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.UpdateFeaturesOptions;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidRequestException;
import org.apache.kafka.common.errors.InvalidUpdateVersionException;
import org.apache.kafka.common.errors.LogDirNotFoundException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** What the Java admin client asks of a cluster, and of the node that leads a partition. */
public class AdminRoundTrip {
    static final Set<AclOperation> OF_A_TOPIC = EnumSet.of(
        AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER,
        AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS);
    static final Set<AclOperation> OF_A_GROUP = EnumSet.of(
        AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS);
    static final Set<AclOperation> OF_THE_CLUSTER = EnumSet.of(
        AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE);
    static final long WAIT_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        String topic = arguments[1];
        Properties common = new Properties();
        common.put("bootstrap.servers", bootstrap);
        try (Admin admin = Admin.create(common)) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get();
            operations(admin, bootstrap, topic);
            int node = leader(admin, topic);
            resources(admin, topic, node);
            brokerOptions(admin, node);
            loggers(admin, node);
            groupOptions(admin, topic + "-own");
            quorumAndFeatures(admin);
            replicas(admin, topic, node);
        }
        System.out.println("ok");
    }

    static void operations(Admin admin, String bootstrap, String topic) throws Exception {
        var topics = new DescribeTopicsOptions().includeAuthorizedOperations(true);
        same(OF_A_TOPIC, admin.describeTopics(List.of(topic), topics).allTopicNames().get().get(topic)
            .authorizedOperations());
        var cluster = new DescribeClusterOptions().includeAuthorizedOperations(true);
        same(OF_THE_CLUSTER, admin.describeCluster(cluster).authorizedOperations().get());
        for (String protocol : List.of("classic", "consumer")) {
            String group = topic + "-" + protocol;
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("group.id", group);
            settings.put("group.protocol", protocol);
            var text = new StringDeserializer();
            try (var consumer = new KafkaConsumer<>(settings, text, text)) {
                consumer.subscribe(List.of(topic));
                until(() -> {
                    consumer.poll(Duration.ofMillis(100));
                    return !consumer.assignment().isEmpty();
                }, "an assignment");
                var groups = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
                same(OF_A_GROUP, admin.describeConsumerGroups(List.of(group), groups).all().get().get(group)
                    .authorizedOperations());
            }
        }
    }

    static void resources(Admin admin, String topic, int node) throws Exception {
        Collection<ConfigResource> all = admin.listConfigResources().all().get();
        expect(all.contains(new ConfigResource(ConfigResource.Type.TOPIC, topic)), "the topic is listed");
        expect(all.contains(broker(node)), "the broker is listed");
        expect(all.contains(logger(node)), "its loggers are listed");
    }

    static void brokerOptions(Admin admin, int node) throws Exception {
        ConfigResource all = new ConfigResource(ConfigResource.Type.BROKER, "");
        for (String name : List.of("advertised.listeners", "listeners")) {
            expect(entry(admin, broker(node), name).value().contains("://"), name + " is an address");
        }
        set(admin, all, "log.retention.ms", "555555555");
        until(() -> is(admin, broker(node), "log.retention.ms", "555555555",
            ConfigEntry.ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG), "the value for all brokers");
        set(admin, broker(node), "log.retention.ms", "666666666");
        until(() -> is(admin, broker(node), "log.retention.ms", "666666666",
            ConfigEntry.ConfigSource.DYNAMIC_BROKER_CONFIG), "the value for this broker");
        delete(admin, broker(node), "log.retention.ms");
        delete(admin, all, "log.retention.ms");
        until(() -> entry(admin, broker(node), "log.retention.ms").source()
            == ConfigEntry.ConfigSource.DEFAULT_CONFIG, "the default");
        refused(InvalidRequestException.class, () -> set(admin, broker(node), "log.dirs", "/elsewhere"));
    }

    static void loggers(Admin admin, int node) throws Exception {
        String before = entry(admin, logger(node), "root").value();
        set(admin, logger(node), "root", "ERROR");
        ConfigEntry changed = entry(admin, logger(node), "root");
        expect(changed.value().equals("ERROR"), "the level is " + changed.value());
        expect(changed.source() == ConfigEntry.ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG, "of a logger");
        refused(InvalidConfigurationException.class, () -> set(admin, logger(node), "no.such.logger", "INFO"));
        refused(InvalidConfigurationException.class, () -> set(admin, logger(node), "root", "LOUD"));
        refused(InvalidRequestException.class, () -> delete(admin, logger(node), "root"));
        set(admin, logger(node), "root", before);
    }

    static void groupOptions(Admin admin, String group) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        set(admin, resource, "consumer.session.timeout.ms", "50000");
        set(admin, resource, "consumer.heartbeat.interval.ms", "6000");
        until(() -> is(admin, resource, "consumer.session.timeout.ms", "50000",
            ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG), "the group's session");
        until(() -> is(admin, resource, "consumer.heartbeat.interval.ms", "6000",
            ConfigEntry.ConfigSource.DYNAMIC_GROUP_CONFIG), "the group's interval");
        refused(InvalidConfigurationException.class, () -> set(admin, resource, "no.such.option", "1"));
        refused(InvalidConfigurationException.class,
            () -> set(admin, resource, "consumer.session.timeout.ms", "soon"));
        expect(admin.listConfigResources().all().get().contains(resource), "the group is listed");
        delete(admin, resource, "consumer.heartbeat.interval.ms");
        delete(admin, resource, "consumer.session.timeout.ms");
    }

    static int leader(Admin admin, String topic) throws Exception {
        var partitions = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions();
        return partitions.get(0).leader().id();
    }

    static void quorumAndFeatures(Admin admin) throws Exception {
        var quorum = admin.describeMetadataQuorum().quorumInfo().get();
        int leader = quorum.leaderId();
        expect(admin.describeCluster().nodes().get().stream().anyMatch(one -> one.id() == leader), "a node leads");
        expect(quorum.voters().size() == 1, "it is the only voter");
        expect(quorum.voters().get(0).logEndOffset() > 0, "something was written");
        var features = admin.describeFeatures().featureMetadata().get();
        for (String name : List.of("metadata.version", "group.version", "share.version", "transaction.version")) {
            short level = features.finalizedFeatures().get(name).maxVersionLevel();
            short newest = features.supportedFeatures().get(name).maxVersion();
            expect(level == newest, name + " has its newest level");
            update(admin, name, newest);
            refused(InvalidUpdateVersionException.class, () -> update(admin, name, (short) (newest + 1)));
        }
        refused(InvalidUpdateVersionException.class, () -> update(admin, "no.such.feature", (short) 1));
    }

    static void update(Admin admin, String name, short level) throws Exception {
        var change = new FeatureUpdate(level, FeatureUpdate.UpgradeType.UPGRADE);
        admin.updateFeatures(Map.of(name, change), new UpdateFeaturesOptions().validateOnly(true)).all().get();
    }

    static void replicas(Admin admin, String topic, int node) throws Exception {
        TopicPartition there = new TopicPartition(topic, 0);
        TopicPartition missing = new TopicPartition(topic, 9);
        for (ElectionType type : ElectionType.values()) {
            var results = admin.electLeaders(type, Set.of(there, missing)).partitions().get();
            expect(results.get(there).get() instanceof ElectionNotNeededException, "no election is needed");
            expect(results.get(missing).get() instanceof UnknownTopicOrPartitionException, "there is none");
        }
        expect(admin.electLeaders(ElectionType.PREFERRED, null).partitions().get().isEmpty(), "none is new");
        expect(admin.listPartitionReassignments().reassignments().get().isEmpty(), "nothing is moved");
        var directories = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
        String directory = directories.keySet().iterator().next();
        expect(directories.get(directory).replicaInfos().containsKey(there), "the partition is in it");
        TopicPartitionReplica replica = new TopicPartitionReplica(topic, 0, node);
        admin.alterReplicaLogDirs(Map.of(replica, directory)).all().get();
        refused(LogDirNotFoundException.class,
            () -> admin.alterReplicaLogDirs(Map.of(replica, "/no/such/directory")).all().get());
    }

    // -- details -------------------------------------------------------------------------------

    interface Step {
        void run() throws Exception;
    }

    static ConfigResource broker(int node) {
        return new ConfigResource(ConfigResource.Type.BROKER, Integer.toString(node));
    }

    static ConfigResource logger(int node) {
        return new ConfigResource(ConfigResource.Type.BROKER_LOGGER, Integer.toString(node));
    }

    static void set(Admin admin, ConfigResource resource, String name, String value) throws Exception {
        alter(admin, resource, new AlterConfigOp(new ConfigEntry(name, value), AlterConfigOp.OpType.SET));
    }

    static void delete(Admin admin, ConfigResource resource, String name) throws Exception {
        alter(admin, resource, new AlterConfigOp(new ConfigEntry(name, null), AlterConfigOp.OpType.DELETE));
    }

    static void alter(Admin admin, ConfigResource resource, AlterConfigOp change) throws Exception {
        Map<ConfigResource, Collection<AlterConfigOp>> changes = Map.of(resource, List.of(change));
        admin.incrementalAlterConfigs(changes).all().get();
    }

    static ConfigEntry entry(Admin admin, ConfigResource resource, String name) throws Exception {
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        return admin.describeConfigs(List.of(resource), options).all().get().get(resource).get(name);
    }

    static boolean is(
        Admin admin, ConfigResource resource, String name, String value, ConfigEntry.ConfigSource source
    ) throws Exception {
        ConfigEntry found = entry(admin, resource, name);
        return value.equals(found.value()) && found.source() == source;
    }

    static void refused(Class<? extends Exception> expected, Step step) throws Exception {
        try {
            step.run();
        } catch (ExecutionException failure) {
            expect(expected.isInstance(failure.getCause()), failure.getCause() + " is no " + expected);
            return;
        }
        throw new AssertionError("was not refused with " + expected);
    }

    static void until(Callable<Boolean> condition, String what) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (!condition.call()) {
            expect(System.currentTimeMillis() < deadline, "no " + what + " within " + WAIT_MS + " ms");
            Thread.sleep(50);
        }
    }

    static void same(Set<AclOperation> expected, Set<AclOperation> found) {
        expect(expected.equals(found), found + " is not " + expected);
    }

    static void expect(boolean truth, String what) {
        if (!truth) {
            throw new AssertionError(what);
        }
    }
}
