"""Every backend and every fake is held to the one law of storage."""

from pathlib import Path

import pytest

from perdure.testing.storage_checks import commits, reads, sessions, values
from perdure.testing.storage_suite import CHECKS, Check, Place, run
from tests.conformance.places import FaultyPlace, MemoryPlace, SqlitePlace

LAW = [
    pytest.param(commits.ids_are_the_seqs_of_their_writes, marks=pytest.mark.spec("ST-01")),
    pytest.param(
        commits.one_counter_serves_main_and_every_scope,
        marks=pytest.mark.spec("ST-02", "ST-05", "WS-14"),
    ),
    pytest.param(commits.seqs_that_do_not_follow_are_refused, marks=pytest.mark.spec("ST-03")),
    pytest.param(
        commits.payloads_that_look_like_references_come_back_unchanged,
        marks=pytest.mark.spec("ST-04"),
    ),
    pytest.param(commits.a_refused_batch_leaves_nothing, marks=pytest.mark.spec("ST-06")),
    pytest.param(
        commits.writes_about_nothing_are_refused, marks=pytest.mark.spec("ST-06", "TK-19")
    ),
    pytest.param(commits.an_unknown_write_is_refused, marks=pytest.mark.spec("ST-31")),
    pytest.param(
        commits.one_batch_has_one_lifetime,
        marks=pytest.mark.spec("ST-10", "WS-03", "WS-04", "WS-15"),
    ),
    pytest.param(commits.retirement_is_a_main_write, marks=pytest.mark.spec("ST-11")),
    pytest.param(
        commits.time_stands_in_main_commits_and_never_falls, marks=pytest.mark.spec("TI-01")
    ),
    pytest.param(
        commits.boundary_at_finds_the_last_commit_in_time, marks=pytest.mark.spec("TI-04")
    ),
    pytest.param(commits.only_strict_json_is_stored, marks=pytest.mark.spec("ST-25")),
    pytest.param(commits.strict_json_comes_back_as_it_was, marks=pytest.mark.spec("ST-25")),
    pytest.param(
        commits.what_was_given_and_what_is_read_are_snapshots, marks=pytest.mark.spec("ST-18")
    ),
    pytest.param(
        commits.a_cancelled_caller_neither_loses_nor_splits_a_commit,
        marks=pytest.mark.spec("ST-33"),
    ),
    pytest.param(commits.commits_pages_the_whole_journal, marks=pytest.mark.spec("BR-10")),
    pytest.param(
        commits.close_stops_admission_and_retires_nothing, marks=pytest.mark.spec("ST-26", "WS-05")
    ),
    pytest.param(commits.opening_creates_nothing, marks=pytest.mark.spec("ST-27")),
    pytest.param(
        commits.a_read_during_a_commit_sees_a_whole_state, marks=pytest.mark.spec("ST-07", "ST-17")
    ),
    pytest.param(reads.absent_ids_are_missing, marks=pytest.mark.spec("ST-12")),
    pytest.param(
        reads.scan_bounds_are_exclusive_and_limits_required, marks=pytest.mark.spec("ST-13")
    ),
    pytest.param(reads.filters_work_as_named, marks=pytest.mark.spec("ST-14")),
    pytest.param(
        reads.entries_are_scanned_over_the_whole_session, marks=pytest.mark.spec("ST-13", "ST-14")
    ),
    pytest.param(
        reads.a_boundary_is_the_end_of_a_main_commit,
        marks=pytest.mark.spec("ST-15", "CX-16", "TI-02"),
    ),
    pytest.param(reads.an_entry_carries_all_its_fields, marks=pytest.mark.spec("ST-19")),
    pytest.param(reads.a_placed_entry_reads_the_payload_it_refers_to),
    pytest.param(
        reads.conversation_state_moves_with_its_own_writes_only,
        marks=pytest.mark.spec("ST-20", "ST-32", "ST-34"),
    ),
    pytest.param(reads.a_replacement_keeps_the_suffix, marks=pytest.mark.spec("CX-15", "CX-18")),
    pytest.param(reads.a_task_is_read_as_it_was, marks=pytest.mark.spec("TI-02")),
    pytest.param(
        reads.random_histories_equal_the_reference,
        marks=pytest.mark.spec(
            "CX-17", "ST-21", "ST-29", "ST-34", "TI-02", "TI-03", "VL-13", "VL-19"
        ),
    ),
    pytest.param(reads.a_replay_answers_like_the_store, marks=pytest.mark.spec("BR-11")),
    pytest.param(reads.one_read_sees_one_state, marks=pytest.mark.spec("ST-17")),
    pytest.param(values.addresses_are_equal_by_content, marks=pytest.mark.spec("VL-01", "VL-02")),
    pytest.param(
        values.an_address_of_the_wrong_kind_is_refused, marks=pytest.mark.spec("VL-04", "WS-15")
    ),
    pytest.param(
        values.an_unset_value_is_absent_and_null_is_not, marks=pytest.mark.spec("VL-05", "VL-08")
    ),
    pytest.param(
        values.session_values_keep_the_newest_only, marks=pytest.mark.spec("VL-06", "ST-16")
    ),
    pytest.param(
        values.session_lists_append_page_and_delete, marks=pytest.mark.spec("VL-07", "ST-24")
    ),
    pytest.param(values.each_set_is_a_version, marks=pytest.mark.spec("VL-08", "VL-13")),
    pytest.param(
        values.a_fork_sees_its_parent_through_its_boundary, marks=pytest.mark.spec("VL-14", "VL-15")
    ),
    pytest.param(values.inheritance_may_be_off, marks=pytest.mark.spec("VL-13", "VL-19")),
    pytest.param(
        values.a_list_page_is_bounded_and_stable, marks=pytest.mark.spec("VL-17", "VL-18", "VL-22")
    ),
    pytest.param(
        values.a_fork_reads_the_prefix_then_its_own,
        marks=pytest.mark.spec("VL-19", "VL-20", "VL-27"),
    ),
    pytest.param(values.pages_run_backwards_and_stop_at_tags, marks=pytest.mark.spec("VL-21")),
    pytest.param(values.values_are_scanned_by_prefix, marks=pytest.mark.spec("VL-26")),
    pytest.param(
        values.values_of_the_past_are_scanned, marks=pytest.mark.spec("VL-26", "VL-13", "TI-05")
    ),
    pytest.param(
        values.working_data_survives_until_retired,
        marks=pytest.mark.spec("WS-01", "WS-05", "WS-06"),
    ),
    pytest.param(
        values.working_values_and_lists_are_deleted_one_by_one,
        marks=pytest.mark.spec("WS-01", "ST-24"),
    ),
    pytest.param(
        values.working_data_never_inherits_or_rewinds, marks=pytest.mark.spec("WS-02", "ST-16")
    ),
    pytest.param(
        values.retirement_and_settlement_are_one, marks=pytest.mark.spec("WS-07", "SQ-03")
    ),
    pytest.param(values.scope_names_are_any_text, marks=pytest.mark.spec("WS-13")),
    pytest.param(values.a_deep_chain_of_forks_is_read, marks=pytest.mark.spec("VL-16", "SQ-09")),
    pytest.param(
        sessions.an_absent_session_is_created_only_when_asked,
        marks=pytest.mark.spec("ST-27", "SN-05"),
    ),
    pytest.param(sessions.names_are_compared_by_bytes, marks=pytest.mark.spec("SN-03")),
    pytest.param(sessions.bad_names_are_refused, marks=pytest.mark.spec("SN-03")),
    pytest.param(sessions.an_id_is_permanent_and_a_name_is_not, marks=pytest.mark.spec("SN-02")),
    pytest.param(sessions.a_page_lists_by_name_and_opens_nothing, marks=pytest.mark.spec("SN-07")),
    pytest.param(sessions.a_second_writer_is_refused, marks=pytest.mark.spec("ST-30", "SN-11")),
    pytest.param(sessions.a_reader_works_beside_the_writer, marks=pytest.mark.spec("SN-10")),
    pytest.param(sessions.a_session_is_found_by_its_id, marks=pytest.mark.spec("SN-02")),
    pytest.param(sessions.a_request_makes_one_session),
    pytest.param(sessions.openings_are_kept, marks=pytest.mark.spec("SN-14")),
    pytest.param(sessions.sessions_never_see_each_other, marks=pytest.mark.spec("ST-28")),
    pytest.param(sessions.a_deleted_session_is_gone),
]


@pytest.fixture(params=["memory", "sqlite", "faulty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    match request.param:
        case "memory":
            return MemoryPlace()
        case "faulty":
            return FaultyPlace()
        case _:
            return SqlitePlace(tmp_path)


def test_the_table_names_every_check() -> None:
    assert [row.values[0] for row in LAW] == list(CHECKS)


@pytest.mark.spec("MM-01")
@pytest.mark.parametrize("check", LAW, ids=lambda check: check.__name__)
async def test_law(check: Check, place: Place) -> None:
    await run(check, place)
