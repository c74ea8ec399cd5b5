"""Random histories: every store, and so etcd and ours alike, answers what a plain model answers."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from braidmq.cluster.metadata_store import Compare, CreateRevision, MetadataStore, ModRevision, Put, ValueIs
from conformance.model import Command, Commit, Grant, Model, Played, Revoke
from conformance.places import Opener, run

KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "b\x00"])
VALUES = st.sampled_from([b"", b"1", b"\xff"])
LEASES = st.sampled_from([0, 0, 0, 1, 2, 3])
REVISIONS = st.sampled_from([0, 0, 1, 2, 3, 4, 5])
COMPARES: st.SearchStrategy[Compare] = st.one_of(
    st.builds(ModRevision, KEYS, REVISIONS),
    st.builds(CreateRevision, KEYS, REVISIONS),
    st.builds(ValueIs, KEYS, VALUES),
)
COMMITS = st.builds(
    Commit,
    st.lists(COMPARES, max_size=1),
    st.lists(st.builds(Put, KEYS, VALUES, LEASES), max_size=3),
    st.lists(KEYS, max_size=2),
)
COMMANDS: st.SearchStrategy[Command] = st.one_of(
    COMMITS, COMMITS, COMMITS, st.builds(Grant), st.builds(Revoke, st.sampled_from([1, 2]))
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(COMMANDS, min_size=5, max_size=15))
def test_a_random_history_goes_as_in_the_model(place: Opener, commands: list[Command]) -> None:
    """N4: outcomes, revisions, items, leases and watches, for any commands."""

    async def story(store: MetadataStore) -> None:
        for item in (await store.snapshot("")).items:
            await store.commit(deletes=[item.key])
        played = Played(store, (await store.snapshot("")).revision)
        model = Model()
        for command in commands:
            assert await played.do(command) == model.do(command), command
        found = await played.snapshot("a")
        assert found.revision == model.revision
        assert found.items == tuple(model.items[key] for key in sorted(model.items) if key.startswith("a"))
        assert await played.changes("", Model.revision, len(model.changes)) == model.changes
        await played.end()

    run(place, story)
