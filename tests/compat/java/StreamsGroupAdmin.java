import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListStreamsGroupOffsetsSpec;
import org.apache.kafka.clients.admin.StreamsGroupDescription;
import org.apache.kafka.clients.admin.StreamsGroupMemberAssignment;
import org.apache.kafka.clients.admin.StreamsGroupMemberDescription;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.config.ConfigResource;

/**
 * Looks at a streams group as an administrator. Called with what it is to find or do:
 * `standbys N` sets an option, `running MEMBERS TASKS STANDBYS` waits until so many are there and checks what is
 * shown, `empty` expects nobody and deletes the group.
 */
public class StreamsGroupAdmin {
    static final long WAIT_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        String group = arguments[1];
        try (Admin admin = Admin.create(settings)) {
            switch (arguments[2]) {
                case "standbys" -> setStandbys(admin, group, arguments[3]);
                case "running" -> expectRunning(
                    admin, group, Integer.parseInt(arguments[3]), Integer.parseInt(arguments[4]),
                    Integer.parseInt(arguments[5]));
                default -> deleteEmpty(admin, group);
            }
        }
        System.out.println("ok");
    }

    static void setStandbys(Admin admin, String group, String number) throws Exception {
        ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
        ConfigEntry entry = new ConfigEntry("streams.num.standby.replicas", number);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(new AlterConfigOp(entry, AlterConfigOp.OpType.SET))))
            .all().get();
        long deadline = System.currentTimeMillis() + WAIT_MS;
        while (!number.equals(admin.describeConfigs(List.of(resource)).all().get().get(resource)
            .get("streams.num.standby.replicas").value())) {
            expect(System.currentTimeMillis() < deadline, "the option is not shown as it was set");
            Thread.sleep(100);
        }
    }

    static void expectRunning(Admin admin, String group, int members, int tasks, int standbys) throws Exception {
        long deadline = System.currentTimeMillis() + WAIT_MS;
        StreamsGroupDescription shown = describe(admin, group);
        while (shown.groupState() != GroupState.STABLE || shown.members().size() != members
            || count(shown, false) != tasks || count(shown, true) != standbys) {
            expect(System.currentTimeMillis() < deadline, "not at rest: " + shown.groupState() + shown.members());
            Thread.sleep(200);
            shown = describe(admin, group);
        }
        Set<String> active = new HashSet<>();
        for (StreamsGroupMemberDescription member : shown.members()) {
            for (StreamsGroupMemberAssignment.TaskIds ids : member.assignment().activeTasks()) {
                for (int partition : ids.partitions()) {
                    expect(active.add(ids.subtopologyId() + "_" + partition), "a task has two active ones");
                }
            }
            expect(member.assignment().equals(member.targetAssignment()), "a member is on its way");
            expect(member.memberEpoch() == shown.groupEpoch(), "a member is in an older epoch");
        }
        expect(shown.subtopologies().size() == 2, "subtopologies " + shown.subtopologies());
        GroupListing listed = admin.listGroups(ListGroupsOptions.forStreamsGroups()).all().get().stream()
            .filter(one -> one.groupId().equals(group)).findFirst().orElseThrow();
        expect(listed.type().orElseThrow() == GroupType.STREAMS, "listed as " + listed);
        expect(listed.groupState().orElseThrow() == GroupState.STABLE, "listed as " + listed);
        expect(!admin.listStreamsGroupOffsets(Map.of(group, new ListStreamsGroupOffsetsSpec()))
            .partitionsToOffsetAndMetadata(group).get().isEmpty(), "no offsets are shown");
    }

    static int count(StreamsGroupDescription shown, boolean standbys) {
        int count = 0;
        for (StreamsGroupMemberDescription member : shown.members()) {
            StreamsGroupMemberAssignment has = member.assignment();
            for (StreamsGroupMemberAssignment.TaskIds ids : standbys ? has.standbyTasks() : has.activeTasks()) {
                count += ids.partitions().size();
            }
        }
        return count;
    }

    static void deleteEmpty(Admin admin, String group) throws Exception {
        StreamsGroupDescription shown = describe(admin, group);
        expect(shown.groupState() == GroupState.EMPTY, "the group has members: " + shown.members());
        admin.deleteStreamsGroups(List.of(group)).all().get();
        expect(admin.listGroups().all().get().stream().noneMatch(one -> one.groupId().equals(group)),
            "the group is still there");
    }

    static StreamsGroupDescription describe(Admin admin, String group) throws Exception {
        return admin.describeStreamsGroups(List.of(group)).all().get().get(group);
    }

    static void expect(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }
}
